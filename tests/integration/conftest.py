"""Real processes for the integration tests: one embedded broker a session, a run of its own a test."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gyre_engine.log.kafka import KafkaLog
from gyre_engine.log.settings import KafkaSettings
from gyre_engine.log.topics import ensure_topics
from infra.broker.broker import Broker, BrokerSettings


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """An Apache Kafka broker that lives as long as the test session."""
    folder: Path = tmp_path_factory.mktemp("broker")
    with Broker(BrokerSettings(folder)) as running:
        yield running


@pytest.fixture
def kafka_settings(broker: Broker) -> KafkaSettings:
    """How to reach the session's broker, with limits that suit tests."""
    return KafkaSettings(broker.bootstrap_servers, partitions=2)


@pytest.fixture
def open_log(kafka_settings: KafkaSettings) -> Iterator[Callable[..., KafkaLog]]:
    """Opens handles on a run (default: a fresh one, with its topics declared); closes them afterwards."""
    opened: list[KafkaLog] = []
    fresh = f"t{uuid.uuid4().hex[:8]}"

    def open_run(run: str = fresh, settings: KafkaSettings = kafka_settings) -> KafkaLog:
        if not any(log.run == run for log in opened):
            ensure_topics(kafka_settings, run)
        opened.append(KafkaLog(settings, run))
        return opened[-1]

    yield open_run
    for log in opened:
        log.close()


@pytest.fixture
def kafka_log(open_log: Callable[..., KafkaLog]) -> KafkaLog:
    """A log on Kafka with a fresh run."""
    return open_log()

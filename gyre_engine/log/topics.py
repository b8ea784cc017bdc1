"""Topics are declared, never created by accident: partitions, replicas and retention of each are explicit (log-rules, 14 and 18)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import Any

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from gyre_engine.log.names import RUNS, full_name, partitions_of, require_word
from gyre_engine.log.port import TOPICS, LogUnavailable
from gyre_engine.log.presence import client_log
from gyre_engine.log.settings import KafkaSettings, client_properties


class TopicMismatch(RuntimeError):
    """A topic exists with another partition count than this run is configured for."""


def admin(settings: KafkaSettings) -> AdminClient:
    """A client for questions about the whole cluster."""
    return AdminClient(client_properties(settings), logger=client_log)


def answers(bootstrap_servers: str, timeout: float) -> bool:
    """Whether the cluster answers a metadata request within `timeout` seconds."""
    try:
        return bool(admin(KafkaSettings(bootstrap_servers)).list_topics(timeout=timeout).brokers)
    except KafkaException:
        return False


def topic_config(settings: KafkaSettings, topic: str) -> dict[str, str]:
    """What a topic is declared with. Events are kept until their run is deleted; `runs` is compacted."""
    common = {
        "max.message.bytes": str(settings.message_max_bytes),
        "min.insync.replicas": str(min(2, max(1, settings.replication - 1))),
        "unclean.leader.election.enable": "false",
        "message.timestamp.type": "CreateTime",
    }
    kept = {"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1"}
    return common | ({"cleanup.policy": "compact"} if topic == RUNS else kept)


def ensure_topics(settings: KafkaSettings, run: str) -> dict[str, int]:
    """Declare the topics of a run that are not there yet; the partition count of each. Raises TopicMismatch, LogUnavailable."""
    require_word("run", run)
    require_word("kafka.prefix", settings.prefix)
    client = admin(settings)
    names = {full_name(settings.prefix, run, topic): topic for topic in (*TOPICS, RUNS)}
    known = _partitions(client, settings)
    _require_same(settings, names, known)
    new = [_declared(settings, name, topic) for name, topic in names.items() if name not in known]
    if new:
        _settle(
            client.create_topics(new, operation_timeout=settings.request_timeout_s), settings, KafkaError.TOPIC_ALREADY_EXISTS
        )
    return {topic: partitions_of(topic, settings.partitions) for topic in names.values()}


def delete_run(settings: KafkaSettings, run: str) -> list[str]:
    """Delete every topic of a run, those of its streams as well; their names. `runs.forget_run` takes it off the list."""
    require_word("run", run)
    client = admin(settings)
    own = [name for name in _partitions(client, settings) if name.startswith(f"{settings.prefix}.{run}.")]
    if own:
        deleted = client.delete_topics(own, operation_timeout=settings.request_timeout_s)
        _settle(deleted, settings, KafkaError.UNKNOWN_TOPIC_OR_PART)
    return own


def _declared(settings: KafkaSettings, name: str, topic: str) -> NewTopic:
    return NewTopic(
        name,
        num_partitions=partitions_of(topic, settings.partitions),
        replication_factor=settings.replication,
        config=topic_config(settings, topic),
    )


def _partitions(client: AdminClient, settings: KafkaSettings) -> dict[str, int]:
    try:
        topics = client.list_topics(timeout=settings.request_timeout_s).topics
    except KafkaException as error:
        raise LogUnavailable(
            f"no Kafka answers at {settings.bootstrap_servers} within {settings.request_timeout_s:g} s ({error.args[0].str()})"
        ) from error
    return {name: len(topic.partitions) for name, topic in topics.items()}


def _require_same(settings: KafkaSettings, names: Mapping[str, str], known: Mapping[str, int]) -> None:
    for name, topic in names.items():
        wanted = partitions_of(topic, settings.partitions)
        if known.get(name, wanted) != wanted:
            raise TopicMismatch(
                f"the topic {name} has {known[name]} partitions, the configuration says {wanted}: "
                f"partition counts are fixed for a run; set kafka.partitions back or start a new run."
            )


def _settle(futures: Mapping[str, Future[Any]], settings: KafkaSettings, harmless: int) -> None:
    for name, future in futures.items():
        try:
            future.result(settings.request_timeout_s * 2)
        except KafkaException as error:
            if error.args[0].code() != harmless:
                raise LogUnavailable(f"{settings.bootstrap_servers} refused {name}: {error.args[0].str()}") from error


__all__: Sequence[str] = ("TopicMismatch", "admin", "answers", "delete_run", "ensure_topics", "topic_config")

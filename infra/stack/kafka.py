"""The log of a stack: how it is reached, and the broker of a folder as one of its processes."""

from __future__ import annotations

from collections.abc import Mapping

from gyre_engine.config.schema import KafkaConfig
from gyre_engine.log.settings import KafkaSettings
from infra.broker.broker import Broker, BrokerSettings
from infra.stack.layout import StackFolder
from infra.stack.ports import free_ports
from infra.supervisor.spec import ProcessSpec
from infra.supervisor.supervisor import Supervisor

BROKER_STAGE = 9
"""Of a stop: above all stages of `infra.stack.processes`, since the log ends last."""
BROKER_LIMIT_S = 90.0


def kafka_settings(own: KafkaConfig, servers: str, replication: int, extra: Mapping[str, str]) -> KafkaSettings:
    """[kafka] as the log's clients take it. `extra`: librdkafka's settings, passwords among them."""
    return KafkaSettings(
        bootstrap_servers=servers, prefix=own.prefix, partitions=own.partitions, replication=replication,
        delivery_timeout_s=own.delivery_timeout_s, extra=dict(extra),
    )  # fmt: skip


def start_broker(supervisor: Supervisor, folder: StackFolder, host: str = "127.0.0.1", port: int = 0) -> str:
    """Start the folder's own broker and wait until it answers; its bootstrap servers. Raises NotReady or ProcessGaveUp."""
    broker = Broker(BrokerSettings(folder.kafka, host, port=port or free_ports(1, host)[0]))
    supervisor.start(ProcessSpec("broker", argv=tuple(broker.prepare()), stage=BROKER_STAGE, ready=broker.answers))
    supervisor.wait_ready(["broker"], BROKER_LIMIT_S)
    return broker.bootstrap_servers

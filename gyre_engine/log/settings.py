"""How the Kafka log is reached: the settings, and the client properties that follow from them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

Properties = dict[str, Any]


@dataclass(frozen=True, slots=True)
class KafkaSettings:
    """A Kafka cluster and how Gyre uses it. `extra` goes to every client as it is (librdkafka's names; security, too)."""

    bootstrap_servers: str
    prefix: str = "gyre"
    partitions: int = 4
    """Of every execution-keyed topic; fixed for a run."""
    replication: int = 1
    delivery_timeout_s: float = 30.0
    """How long an append may wait for its acknowledgement."""
    request_timeout_s: float = 10.0
    """How long a question to the cluster may take (ends, metadata, commits)."""
    linger_ms: float = 0.0
    """How long the producer waits for company for a record; 0 sends at once."""
    message_max_bytes: int = 16 * 1024 * 1024
    extra: Mapping[str, str] = field(default_factory=dict, repr=False)
    """May hold passwords: kept out of repr."""


def client_properties(settings: KafkaSettings) -> Properties:
    """What every client is given: servers, patience with a broker that is away, silence, and `extra` last."""
    return {
        "bootstrap.servers": settings.bootstrap_servers,
        "socket.connection.setup.timeout.ms": 5000,
        "reconnect.backoff.ms": 50,
        "reconnect.backoff.max.ms": 1000,
        "socket.timeout.ms": max(1000, int(settings.request_timeout_s * 1000)),
        "socket.keepalive.enable": True,
        "socket.nagle.disable": True,
        "log.connection.close": False,
        "allow.auto.create.topics": False,
        **settings.extra,
    }


def producer_properties(settings: KafkaSettings) -> Properties:
    """Acknowledged by all replicas, idempotent, partitioned as Java and aiokafka do (architecture.md)."""
    properties = client_properties(settings) | {
        "acks": "all",
        "enable.idempotence": True,
        # With more in flight a broker takes the second request of a producer that it does not know yet, though it refused the
        # first (a partition that comes up at that moment): the first is then lost, acknowledged (KAFKA-15591).
        "max.in.flight.requests.per.connection": 1,
        "partitioner": "murmur2_random",
        "linger.ms": settings.linger_ms,
        "message.timeout.ms": int(settings.delivery_timeout_s * 1000),
        "message.max.bytes": settings.message_max_bytes,
        "queue.buffering.max.kbytes": 256 * 1024,
        "topic.metadata.propagation.max.ms": 3000,
    }
    del properties["allow.auto.create.topics"]
    return properties


def consumer_properties(settings: KafkaSettings, group: str, wait_ms: int) -> Properties:
    """Committed records only, from the beginning where there is no position, with an event at each partition's end."""
    return client_properties(settings) | {
        "group.id": group,
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "auto.offset.reset": "earliest",
        "isolation.level": "read_committed",
        "enable.partition.eof": True,
        "fetch.wait.max.ms": wait_ms,
        "fetch.queue.backoff.ms": 20,
        "fetch.error.backoff.ms": 100,
        "queued.max.messages.kbytes": 32 * 1024,
        "message.max.bytes": settings.message_max_bytes,
        "receive.message.max.bytes": max(100_000_000, 2 * settings.message_max_bytes),
        "max.poll.interval.ms": 86_400_000,
    }

"""Model calls of a run as facts, read past the full decoder: replay and restarts read whole histories this way."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable

from confluent_kafka import KafkaError, Message, TopicPartition

from gyre_engine.events import CodecError, Recorded
from gyre_engine.log.intake import Intake
from gyre_engine.log.kafka import KafkaLog
from gyre_engine.log.kafka_follower import new_consumer, read_topic, require_harmless
from gyre_engine.log.port import Log, LogUnavailable, Offsets, Raw
from gyre_engine.log.presence import warm
from gyre_engine.trees import facts
from gyre_engine.trees.forest import Forest

log = logging.getLogger(__name__)
TOPIC = "model-calls"


class _Hand(Intake):
    """Hands each record on as it is, so that nothing is decoded that nobody asks for."""

    def __init__(self, to: Log, take: Callable[[Raw], None]) -> None:
        super().__init__(to, "records")
        self._take = take

    def take(self, raw: Raw) -> Recorded | None:
        self._take(raw)
        return None


def each_record(
    to: KafkaLog, topic: str, take: Callable[[Raw], None], *, start: Offsets | None = None, end: Offsets | None = None
) -> None:
    """Call `take` with each record of a topic as it stands, from `start` to `end`, partition by partition."""
    limits = {**to.ends([topic]), **(end or {})}
    deque(read_topic(to.places, _Hand(to, take), start or {}, limits), maxlen=0)


def grow(to: Log, forest: Forest) -> int:
    """Fold all model calls that stand on the log into `forest`; how many records that were. What cannot be read is
    passed over: its execution is quarantined by an event of its own (log-rules, 16)."""
    if isinstance(to, KafkaLog):
        return _grow_raw(to, forest)
    count = 0
    for record in to.read(TOPIC):
        forest.observe(facts.of_event(record.event))
        count += 1
    return count


def _grow_raw(to: KafkaLog, forest: Forest) -> int:
    """All partitions at once, each in its order; nothing of a message is looked at but its value."""
    left = {place for place, end in to.ends([TOPIC]).items() if end}
    consumer = new_consumer(to.places, "readers", 5)
    warm(consumer, to.settings.request_timeout_s)
    consumer.assign([TopicPartition(to.places.name(TOPIC), partition, 0) for _, partition in left])
    count = 0
    until = time.monotonic() + to.settings.request_timeout_s
    try:
        while left:
            messages = consumer.consume(2000, 0.05)
            if messages:
                until = time.monotonic() + to.settings.request_timeout_s
            elif time.monotonic() > until:
                raise LogUnavailable(f"the log at {to.settings.bootstrap_servers} sent nothing of {TOPIC} within the limit")
            for message in messages:
                error = message.error()
                if error is None:
                    count += _fold(forest, message)
                elif error.code() == KafkaError._PARTITION_EOF:
                    left.discard((TOPIC, message.partition() or 0))
                else:
                    require_harmless(to.places, message, error)
    finally:
        consumer.close()
    return count


def _fold(forest: Forest, message: Message) -> int:
    value = message.value()
    try:
        forest.observe(facts.of_bytes(value if value is None or isinstance(value, bytes) else value.encode()).fact)
    except CodecError as error:
        log.warning("%s, partition %s, offset %s: %s", TOPIC, message.partition(), message.offset(), error)
    return 1

"""Model calls of a run as facts, read past the full decoder: replay and restarts read whole histories this way."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable

from gyre_engine.events import CodecError, Recorded
from gyre_engine.log.intake import Intake, Raw
from gyre_engine.log.kafka import KafkaLog
from gyre_engine.log.kafka_follower import read_topic
from gyre_engine.log.port import Log, Offsets
from gyre_engine.trees.facts import fact_of, read
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
        forest.observe(fact_of(record.event))
        count += 1
    return count


def _grow_raw(to: KafkaLog, forest: Forest) -> int:
    count = 0

    def take(raw: Raw) -> None:
        nonlocal count
        count += 1
        try:
            forest.observe(read(raw.value).fact)
        except CodecError as error:
            log.warning("%s, partition %d, offset %d: %s", raw.topic, raw.partition, raw.offset, error)

    each_record(to, TOPIC, take)
    return count

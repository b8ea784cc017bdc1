"""Reading Kafka topics to an end: as they stand, all partitions at once; or as events, one partition after the other."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from confluent_kafka import Consumer, KafkaError, TopicPartition

from gyre_engine.events import Recorded
from gyre_engine.log.intake import Intake
from gyre_engine.log.kafka_follower import new_consumer, raw_record, require_harmless
from gyre_engine.log.kafka_places import Places
from gyre_engine.log.port import LogUnavailable, Offsets, Raw
from gyre_engine.log.presence import warm

_BATCH = 2000
_SLICE = 0.5
"""Seconds that one call into the client may take: signals and limits are looked at in between."""
_WAIT_MS = 5
"""Short: the next partition is asked for only when the last fetch has come back."""
Ends = Mapping[tuple[str, int], int]


def read_raw(places: Places, start: Offsets, limits: Ends) -> Iterator[Raw]:
    """The records of the partitions in `limits` from `start` to there, each partition in its order. Nothing is decoded."""
    left = _unread(start, limits)
    if not left:
        return
    with _reading(places) as consumer:
        consumer.assign([_at(places, place, start) for place in left])
        yield from _until(places, consumer, left)


def read_topic(places: Places, intake: Intake, start: Offsets, limits: Ends) -> Iterator[Recorded]:
    """The events of each partition from `start` to `limits`, one partition after the other."""
    left = _unread(start, limits)
    if not left:
        return
    with _reading(places) as consumer:
        for place, end in left.items():
            consumer.assign([_at(places, place, start)])
            for raw in _until(places, consumer, {place: end}):
                event = intake.take(raw)
                if event is not None:
                    yield event


@contextmanager
def _reading(places: Places) -> Iterator[Consumer]:
    consumer = new_consumer(places, "readers", _WAIT_MS)
    warm(consumer, places.settings.request_timeout_s)
    try:
        yield consumer
    finally:
        consumer.close()


def _unread(start: Offsets, limits: Ends) -> dict[tuple[str, int], int]:
    return {place: end for place, end in limits.items() if end > start.get(place, 0)}


def _at(places: Places, place: tuple[str, int], start: Offsets) -> TopicPartition:
    return TopicPartition(places.name(place[0]), place[1], start.get(place, 0))


def _until(places: Places, consumer: Consumer, left: dict[tuple[str, int], int]) -> Iterator[Raw]:
    """Records below the ends in `left`, which loses each partition that is read, or of which only holes are left."""
    patience = places.settings.request_timeout_s
    until = time.monotonic() + patience
    while left:
        messages = consumer.consume(1, _SLICE)
        messages += consumer.consume(_BATCH - 1, 0) if messages else []
        if messages:
            until = time.monotonic() + patience
        elif time.monotonic() > until:
            raise LogUnavailable(f"the log at {places.settings.bootstrap_servers} sent nothing for {patience:g} s of reading")
        for message in messages:
            error = message.error()
            if error is not None:
                if error.code() != KafkaError._PARTITION_EOF:
                    require_harmless(places, message, error)
                else:
                    left.pop((places.short(message.topic() or ""), message.partition() or 0), None)
                continue
            raw = raw_record(places, message)
            end = left.get((raw.topic, raw.partition), 0)
            if raw.offset < end:
                yield raw
            if raw.offset + 1 >= end:
                left.pop((raw.topic, raw.partition), None)

"""Reading Kafka: partitions are assigned, never balanced; positions count holes, so that a reader gets past aborted transactions."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

from confluent_kafka import Consumer, KafkaError, Message, TopicPartition

from gyre_engine.events import Recorded
from gyre_engine.log.intake import Intake
from gyre_engine.log.kafka_places import TRANSIENT, Places
from gyre_engine.log.port import LogUnavailable, Offsets, Raw, UnknownTopic
from gyre_engine.log.presence import client_log, warm
from gyre_engine.log.settings import consumer_properties

_SLICE = 0.5
"""Seconds that one call into the client may take: signals and limits are looked at in between."""
_FOLLOW_WAIT_MS = 250
_GONE = (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION)


class KafkaFollower:
    """Follows topics of a run. Belongs to one thread, but for `lag` and `positions`."""

    def __init__(self, places: Places, intake: Intake, topics: Sequence[str], group: str | None) -> None:
        self._places = places
        self._intake = intake
        self._topics = list(topics)
        self._group = group
        self._consumer = new_consumer(places, group or "readers", _FOLLOW_WAIT_MS)
        self._positions: dict[tuple[str, int], int] = {}
        self._stored: dict[tuple[str, int], int] = {}
        self._mark: dict[tuple[str, int], int] = {}

    def begin(self, start: Offsets, from_end: bool) -> None:
        """Choose where to begin, and begin."""
        self._mark = self._places.ends(self._topics)
        self._stored = self._committed() if self._group else {}
        begin = {**dict.fromkeys(self._mark, 0), **(self._mark if from_end else self._stored), **start}
        self._positions = {place: begin[place] for place in self._mark}
        warm(self._consumer, self._places.settings.request_timeout_s)
        self._consumer.assign([self._at(place, offset) for place, offset in self._positions.items()])

    def poll(self, timeout: float, limit: int = 1000) -> list[Recorded]:
        until = time.monotonic() + timeout
        while True:
            left = max(0.0, until - time.monotonic())
            messages = self._consumer.consume(1, min(left, _SLICE))
            if messages and limit > 1:
                messages += self._consumer.consume(limit - 1, 0)
            events = self._intake.take_all(self._records(messages), self._positions)
            if events or (left <= 0 and not messages):
                return events

    def commit(self, positions: Offsets | None = None) -> None:
        if self._group is None:
            raise ValueError("this follower has no group: follow(..., group=NAME) to commit positions")
        self._intake.settle(self._places.settings.delivery_timeout_s)
        wanted = self._positions if positions is None else positions
        changed = {place: offset for place, offset in wanted.items() if self._stored.get(place) != offset}
        if not changed:
            return
        offsets = [self._at(*item) for item in changed.items()]
        what = f"that it stored the positions of {self._group}"
        self._places.ask(what, lambda _left: self._consumer.commit(offsets=offsets, asynchronous=False))
        self._stored.update(changed)

    def positions(self) -> dict[tuple[str, int], int]:
        return dict(self._positions)

    def lag(self) -> int:
        return sum(max(0, end - self._positions[place]) for place, end in self._places.ends(self._topics).items())

    def at_end(self) -> bool:
        return all(self._positions[place] >= end for place, end in self._mark.items())

    def mark_end(self) -> None:
        self._mark = self._places.ends(self._topics)

    @property
    def dead_lettered(self) -> int:
        return self._intake.dead_lettered

    def close(self) -> None:
        self._consumer.close()

    def _records(self, messages: Sequence[Message]) -> Iterator[Raw]:
        for message in messages:
            error = message.error()
            if error is None:
                yield raw_record(self._places, message)
            elif error.code() == KafkaError._PARTITION_EOF:
                self._pass_holes(message)
            else:
                require_harmless(self._places, message, error)

    def _pass_holes(self, message: Message) -> None:
        place = (self._places.short(message.topic() or ""), message.partition() or 0)
        self._positions[place] = max(self._positions[place], message.offset() or 0)

    def _committed(self) -> dict[tuple[str, int], int]:
        places = [self._at(place, -1) for place in self._mark]
        answers = self._places.ask(f"where {self._group} stands", lambda left: self._consumer.committed(places, timeout=left))
        return {(self._places.short(a.topic), a.partition): a.offset for a in answers if a.offset >= 0}

    def _at(self, place: tuple[str, int], offset: int) -> TopicPartition:
        return TopicPartition(self._places.name(place[0]), place[1], offset)


def new_consumer(places: Places, group: str, wait_ms: int) -> Consumer:
    """A client that reads committed records; a fetch waits `wait_ms` at the broker where nothing new is there."""
    properties = consumer_properties(places.settings, places.group(group), wait_ms) | {"error_cb": places.presence.heard}
    return Consumer(properties, logger=client_log)


def raw_record(places: Places, message: Message) -> Raw:
    """What a message holds, under the topic's short name."""
    topic, at_ms = places.short(message.topic() or ""), message.timestamp()[1]
    key, value = message.key(), message.value()
    return Raw(topic, message.partition() or 0, message.offset() or 0, _bytes(key), _bytes(value), at_ms)


def _bytes(data: str | bytes | None) -> bytes | None:
    return data.encode() if isinstance(data, str) else data


def require_harmless(places: Places, message: Message, error: KafkaError) -> None:
    """Raise where reading cannot go on; what the client mends by itself is left to it."""
    if error.code() in _GONE:
        raise UnknownTopic(f"{message.topic()} is gone from the log at {places.settings.bootstrap_servers}: was its run deleted?")
    if error.fatal() or not (error.retriable() or error.code() in TRANSIENT or error.code() == KafkaError._ALL_BROKERS_DOWN):
        raise LogUnavailable(f"reading {message.topic()} at {places.settings.bootstrap_servers}: {error.str()}")

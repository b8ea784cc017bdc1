"""The log on Kafka (confluent-kafka): one run's topics, an idempotent producer, read-committed readers.

A thread serves the producer, so that a future resolves as soon as its acknowledgement is here. After a fork nothing of a KafkaLog
works in the child: open it after forking. An append that failed with LogUnavailable may still have reached the log; derived ids make
doing it again harmless.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from gyre_engine.events import Event, Recorded, encode, new_id, now_us
from gyre_engine.log.intake import Intake
from gyre_engine.log.kafka_follower import KafkaFollower
from gyre_engine.log.kafka_places import Places
from gyre_engine.log.kafka_reader import read_raw, read_topic
from gyre_engine.log.names import RUNS, full_name, record_key
from gyre_engine.log.port import EventTooLarge, LogUnavailable, Offsets, OnDeadLetter, Place, Raw, UnknownTopic
from gyre_engine.log.presence import Presence, client_log, warm
from gyre_engine.log.settings import KafkaSettings, producer_properties

_PROBE_SECONDS = 1.0
_WARM_SECONDS = 2.0
_NO_TOPIC = (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION)
_ROOM = "raise max.message.bytes of the topic, or message.max.bytes of its brokers"


class KafkaLog:
    """One run's log on a Kafka cluster. Safe to use from several threads; followers belong to one thread each."""

    def __init__(self, settings: KafkaSettings, run: str) -> None:
        self.run = run
        self.settings = settings
        self.presence = Presence(settings.bootstrap_servers)
        self.places = Places(settings, run, self.presence)
        self._intakes: list[Intake] = []
        properties = producer_properties(settings) | {"error_cb": self.presence.heard}
        self._producer = Producer(properties, logger=client_log)
        warm(self._producer, _WARM_SECONDS)
        self._closing = threading.Event()
        self._server = threading.Thread(target=self._serve, name=f"log-{run}", daemon=True)
        self._server.start()

    def append(self, event: Event, *, cause: str | None = None, id: str | None = None, at: int | None = None) -> Future[Place]:
        self._require_open(event)
        record = Recorded(id or new_id(), self.run, now_us() if at is None else at, cause, event)
        return self._produce(event, encode(record), record.at // 1000)

    def append_all(self, events: Sequence[Event], *, cause: str | None = None, timeout: float = 30.0) -> list[Place]:
        futures = [self.append(event, cause=cause) for event in events]
        until = time.monotonic() + timeout
        try:
            return [future.result(max(0.0, until - time.monotonic())) for future in futures]
        except TimeoutError as error:
            raise self._unavailable(f"did not acknowledge {len(events)} events within {timeout:g} s") from error

    def read(self, topic: str, *, start: Offsets | None = None, end: Offsets | None = None) -> Iterator[Recorded]:
        limits = {**self.ends([topic]), **(end or {})}
        return read_topic(self.places, self.intake("read"), start or {}, limits)

    def read_raw(self, topic: str, *, start: Offsets | None = None, end: Offsets | None = None) -> Iterator[Raw]:
        return read_raw(self.places, start or {}, self.ends([topic]) if end is None else end)

    def follow(
        self,
        topics: Sequence[str],
        *,
        start: Offsets | None = None,
        from_end: bool = False,
        group: str | None = None,
        reader: str = "",
        on_dead_letter: OnDeadLetter | None = None,
    ) -> KafkaFollower:
        intake = self.intake(reader or group or "a follower", on_dead_letter)
        follower = KafkaFollower(self.places, intake, topics, group)
        follower.begin(start or {}, from_end)
        return follower

    @property
    def dead_lettered(self) -> int:
        return sum(intake.dead_lettered for intake in self._intakes)

    def ends(self, topics: Sequence[str]) -> dict[tuple[str, int], int]:
        return self.places.ends(topics)

    def flush(self, timeout: float = 30.0) -> None:
        left = self._producer.flush(timeout)
        if left:
            raise self._unavailable(f"did not acknowledge {left} events within {timeout:g} s")

    def close(self) -> None:
        """Wait for what was appended (no longer than the delivery timeout; the futures tell), then give back all clients."""
        if self._closing.is_set():
            return
        self._producer.flush(self.settings.delivery_timeout_s)
        self._closing.set()
        self._server.join()
        self.places.close()

    def produce_raw(self, topic: str, key: bytes | None, value: bytes | None) -> Future[Place]:
        """Put a record on a topic as it is: tombstones, copies of archives."""
        return self._send(topic, key, value, [], 0)

    def intake(self, reader: str, on_dead_letter: OnDeadLetter | None = None) -> Intake:
        self._intakes.append(Intake(self, reader, on_dead_letter))
        return self._intakes[-1]

    def _require_open(self, event: Event) -> None:
        if self._closing.is_set():
            raise RuntimeError("this log is closed")
        if not self.run and event.TOPIC != RUNS:
            raise ValueError(f"a log without a run takes only events of {RUNS!r}, not {event.TYPE!r}")

    def _produce(self, event: Event, value: bytes, at_ms: int) -> Future[Place]:
        limit = self.settings.message_max_bytes - 4096
        if len(value) > limit:
            raise EventTooLarge(
                f"a {event.TYPE} event of {len(value):,} bytes; the log takes {limit:,} at most (KafkaSettings.message_max_bytes)"
            )
        headers = [("type", event.TYPE.encode()), ("version", str(event.VERSION).encode())]
        return self._send(event.TOPIC, record_key(event, self.run), value, headers, at_ms)

    def _send(
        self, topic: str, key: bytes | None, value: bytes | None, headers: Iterable[tuple[str, bytes]], at_ms: int
    ) -> Future[Place]:
        future: Future[Place] = Future()

        def delivered(error: KafkaError | None, message: Message) -> None:
            self._resolve(future, topic, error, message)

        name = full_name(self.settings.prefix, self.run, topic)
        until = time.monotonic() + self.settings.delivery_timeout_s
        while True:
            try:
                self._producer.produce(name, value, key, headers=list(headers), timestamp=at_ms, on_delivery=delivered)
            except BufferError:
                self._wait_for_room(until)
            except KafkaException as error:
                future.set_exception(self._failure(topic, error.args[0]))
                return future
            else:
                return future

    def _wait_for_room(self, until: float) -> None:
        if time.monotonic() > until:
            raise self._unavailable(
                f"took nothing for {self.settings.delivery_timeout_s:g} s: the queue of appended events is full"
            )
        self._closing.wait(0.01)

    def _resolve(self, future: Future[Place], topic: str, error: KafkaError | None, message: Message) -> None:
        offset = message.offset()
        if not future.set_running_or_notify_cancel():
            return  # whoever asked has gone
        if error is not None:
            future.set_exception(self._failure(topic, error))
        elif offset is None or offset < 0:
            future.set_exception(self._unavailable(f"did not say where an event for {topic} stands"))
        else:
            self.presence.answered()
            future.set_result(Place(topic, message.partition() or 0, offset))

    def _failure(self, topic: str, error: KafkaError) -> Exception:
        name = full_name(self.settings.prefix, self.run, topic)
        if error.code() == KafkaError._MSG_TIMED_OUT:
            return self._unavailable(f"did not acknowledge an event for {topic} within {self.settings.delivery_timeout_s:g} s")
        if error.code() in _NO_TOPIC:
            return UnknownTopic(
                f"the log at {self.settings.bootstrap_servers} has no topic {name}: declare it (ensure_topics) first"
            )
        if error.code() == KafkaError.MSG_SIZE_TOO_LARGE:
            return EventTooLarge(f"an event for {topic} is larger than {name} takes: {_ROOM}")
        return self._unavailable(f"refused an event for {topic}: {error.str()}")

    def _unavailable(self, what: str) -> LogUnavailable:
        return LogUnavailable(f"the log at {self.settings.bootstrap_servers} {what}")

    def _serve(self) -> None:
        probe = 0.0
        while not self._closing.is_set():
            self._producer.poll(0.1)
            if self.presence.doubtful and time.monotonic() > probe:
                self.places.probe(_PROBE_SECONDS)
                probe = time.monotonic() + _PROBE_SECONDS

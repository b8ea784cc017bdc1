"""The log in memory: what tests and simulations run on. Handles share a store, as clients share a broker.

Events are kept as bytes, so that everything passes through the codec here too.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future

from gyre_engine.events import Event, Recorded, encode, new_id, now_us
from gyre_engine.log.intake import Intake
from gyre_engine.log.names import full_name, partition_of, partitions_of, record_key
from gyre_engine.log.port import LogUnavailable, Offsets, OnDeadLetter, Place, Raw


class MemoryStore:
    """The records of any number of runs, and the groups' committed positions. Safe to use from several threads."""

    def __init__(self, partitions: int = 4) -> None:
        self.partitions = partitions
        self.changed = threading.Condition(threading.RLock())
        self._records: dict[str, list[list[Raw]]] = {}
        self._committed: dict[tuple[str, str, int], int] = {}
        self._held: list[tuple[str, str, bytes | None, bytes | None, int, Future[Place]]] | None = None

    def topic(self, name: str, topic: str) -> list[list[Raw]]:
        """The partitions of a topic, by its full and its short name."""
        with self.changed:
            if name not in self._records:
                self._records[name] = [[] for _ in range(partitions_of(topic, self.partitions))]
            return self._records[name]

    def put(self, name: str, topic: str, key: bytes | None, value: bytes | None, at_ms: int = 0) -> Future[Place]:
        """Append a record as it is; the future resolves at once, or at `release` where the store holds back."""
        place: Future[Place] = Future()
        with self.changed:
            if self._held is not None:
                self._held.append((name, topic, key, value, at_ms, place))
                return place
            at = self._place(name, topic, key, value, at_ms)
        place.set_result(at)
        return place

    def hold(self) -> None:
        """From now on nothing is acknowledged or visible, as while a broker is away."""
        with self.changed:
            self._held = self._held or []

    def release(self, lost: bool = False) -> None:
        """Acknowledge what was held back, in order; or fail it with LogUnavailable, as when it took too long."""
        with self.changed:
            held, self._held = self._held or [], None
            places = [None if lost else self._place(*record[:5]) for record in held]
        for (*_, future), place in zip(held, places, strict=True):
            if place is None:
                future.set_exception(LogUnavailable("the log in memory was away and did not acknowledge"))
            else:
                future.set_result(place)

    def committed(self, group: str, name: str, partition: int) -> int:
        with self.changed:
            return self._committed.get((group, name, partition), 0)

    def commit(self, group: str, name: str, partition: int, offset: int) -> None:
        with self.changed:
            self._committed[group, name, partition] = offset

    def _place(self, name: str, topic: str, key: bytes | None, value: bytes | None, at_ms: int) -> Place:
        partitions = self.topic(name, topic)
        number = partition_of(key or b"", len(partitions))
        offset = len(partitions[number])
        partitions[number].append(Raw(topic, number, offset, key, value, at_ms))
        self.changed.notify_all()
        return Place(topic, number, offset)


class MemoryLog:
    """One run's log in a MemoryStore (default: one of its own)."""

    def __init__(self, store: MemoryStore | None = None, run: str = "run", prefix: str = "gyre") -> None:
        self.run = run
        self.store = store or MemoryStore()
        self.prefix = prefix
        self._intakes: list[Intake] = []
        self._closed = False

    def append(self, event: Event, *, cause: str | None = None, id: str | None = None, at: int | None = None) -> Future[Place]:
        if self._closed:
            raise RuntimeError("this log is closed")
        record = Recorded(id or new_id(), self.run, now_us() if at is None else at, cause, event)
        name, key = full_name(self.prefix, self.run, event.TOPIC), record_key(event, self.run)
        return self.store.put(name, event.TOPIC, key, encode(record), record.at // 1000)

    def append_all(self, events: Sequence[Event], *, cause: str | None = None, timeout: float = 30.0) -> list[Place]:
        futures = [self.append(event, cause=cause) for event in events]
        try:
            return [future.result(timeout) for future in futures]
        except TimeoutError as error:
            raise LogUnavailable(f"the log in memory did not acknowledge within {timeout:g} s") from error

    def read(self, topic: str, *, start: Offsets | None = None, end: Offsets | None = None) -> Iterator[Recorded]:
        limits = {**self.ends([topic]), **(end or {})}
        return self._read(topic, start or {}, limits)

    def read_raw(self, topic: str, *, start: Offsets | None = None, end: Offsets | None = None) -> Iterator[Raw]:
        return self._records(topic, start or {}, self.ends([topic]) if end is None else end)

    def follow(
        self,
        topics: Sequence[str],
        *,
        start: Offsets | None = None,
        from_end: bool = False,
        group: str | None = None,
        reader: str = "",
        on_dead_letter: OnDeadLetter | None = None,
    ) -> MemoryFollower:
        ends = self.ends(topics)
        known = {place: self._committed(group, place) for place in ends} if group else dict.fromkeys(ends, 0)
        begin = {**(ends if from_end else known), **(start or {})}
        intake = self.intake(reader or group or "a follower", on_dead_letter)
        return MemoryFollower(self, {place: begin[place] for place in ends}, group, intake)

    @property
    def dead_lettered(self) -> int:
        return sum(intake.dead_lettered for intake in self._intakes)

    def ends(self, topics: Sequence[str]) -> dict[tuple[str, int], int]:
        with self.store.changed:
            return {(t, n): len(records) for t in topics for n, records in enumerate(self.partitions(t))}

    def flush(self, timeout: float = 30.0) -> None:
        """Nothing to wait for, unless the store holds back: what it holds belongs to the futures."""

    def close(self) -> None:
        self._closed = True

    def partitions(self, topic: str) -> list[list[Raw]]:
        """The records of a topic of this run, a partition."""
        return self.store.topic(full_name(self.prefix, self.run, topic), topic)

    def intake(self, reader: str, on_dead_letter: OnDeadLetter | None = None) -> Intake:
        self._intakes.append(Intake(self, reader, on_dead_letter))
        return self._intakes[-1]

    def _read(self, topic: str, start: Offsets, limits: Offsets) -> Iterator[Recorded]:
        intake = self.intake("read")
        for raw in self._records(topic, start, limits):
            event = intake.take(raw)
            if event is not None:
                yield event

    def _records(self, topic: str, start: Offsets, limits: Offsets) -> Iterator[Raw]:
        for number, records in enumerate(self.partitions(topic)):
            yield from records[start.get((topic, number), 0) : limits.get((topic, number), 0)]

    def _committed(self, group: str, place: tuple[str, int]) -> int:
        return self.store.committed(group_name(self, group), full_name(self.prefix, self.run, place[0]), place[1])


class MemoryFollower:
    """Follows topics of a MemoryLog."""

    def __init__(self, log: MemoryLog, positions: dict[tuple[str, int], int], group: str | None, intake: Intake) -> None:
        self._log = log
        self._positions = positions
        self._group = group
        self._intake = intake
        self.mark_end()

    def poll(self, timeout: float, limit: int = 1000) -> list[Recorded]:
        until = time.monotonic() + timeout
        while True:
            raw = self._wait(until, limit)
            events = self._intake.take_all(raw, self._positions)
            if events or not raw:
                return events

    def commit(self, positions: Offsets | None = None) -> None:
        if self._group is None:
            raise ValueError("this follower has no group: follow(..., group=NAME) to commit positions")
        self._intake.settle(timeout=30.0)
        for (topic, number), offset in (self._positions if positions is None else positions).items():
            name = full_name(self._log.prefix, self._log.run, topic)
            self._log.store.commit(group_name(self._log, self._group), name, number, offset)

    def positions(self) -> dict[tuple[str, int], int]:
        return dict(self._positions)

    def lag(self) -> int:
        return sum(max(0, end - self._positions[place]) for place, end in self._log.ends(self._topics()).items())

    def at_end(self) -> bool:
        return all(self._positions[place] >= end for place, end in self._mark.items())

    def mark_end(self) -> None:
        self._mark = self._log.ends(self._topics())

    @property
    def dead_lettered(self) -> int:
        return self._intake.dead_lettered

    def close(self) -> None:
        """Nothing to give back."""

    def _topics(self) -> list[str]:
        return list(dict.fromkeys(topic for topic, _ in self._positions))

    def _wait(self, until: float, limit: int) -> list[Raw]:
        with self._log.store.changed:
            while not (raw := self._next(limit)):
                left = until - time.monotonic()
                if left <= 0:
                    return []
                self._log.store.changed.wait(left)
            return raw

    def _next(self, limit: int) -> list[Raw]:
        taken: list[Raw] = []
        for (topic, number), position in self._positions.items():
            taken.extend(self._log.partitions(topic)[number][position : position + limit - len(taken)])
        return taken


def group_name(to: MemoryLog, group: str) -> str:
    """Groups are named per run (log-rules, 14)."""
    return f"{to.prefix}.{to.run}.{group}"

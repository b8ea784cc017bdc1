"""The Log port: append events, read a topic to its end, follow topics, know where they end.

Implementations: `memory` (first-class: tests and simulations) and `kafka`. Only modules of this package import a Kafka client; beside
them the Faust apps bring their own. Topics are named without their prefix here (`model-calls`); an implementation adds
`<prefix>.<run>.`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Protocol, Self

from gyre_engine.dead_end import DeadEnd
from gyre_engine.events import Event, Recorded
from gyre_engine.events.log import DeadLetter

TOPICS: tuple[str, ...] = (
    "executions",
    "model-calls",
    "tool-events",
    "scores",
    "cells",
    "water-level",
    "commands",
    "trees",
    "trajectories",
    "micro-steps",
    "training",
    "dead-letters",
)
"""Topics of one run. `runs` is one for all runs and compacted."""

SINGLE_PARTITION: frozenset[str] = frozenset(
    {"commands", "training", "micro-steps", "water-level", "cells", "trajectories", "runs"}
)
"""Topics whose order matters as a whole; all others have `kafka.partitions` partitions (equal for all execution-keyed topics)."""

STRICT: frozenset[str] = frozenset({"training", "micro-steps", "commands"})
"""Topics on which an unreadable or unknown event stops the reader (log-rules, 16). Elsewhere it is dead-lettered and passed over."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a record stands on the log."""

    topic: str
    partition: int
    offset: int

    @classmethod
    def of(cls, record: Raw | Recorded | DeadLetter) -> Self:
        """Where `record` stands; of a dead letter: what it speaks of."""
        return cls(record.topic, record.partition, record.offset)

    def __str__(self) -> str:
        return f"{self.topic}, partition {self.partition}, offset {self.offset}"

    @property
    def parts(self) -> tuple[str, str, str]:
        """What stands for the record in the id of what follows from it."""
        return self.topic, str(self.partition), str(self.offset)


@dataclass(frozen=True, slots=True)
class Raw:
    """A record as it stands on the log; `at_ms` is the log's timestamp."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    at_ms: int

    @property
    def place(self) -> Place:
        return Place.of(self)


Offsets = Mapping[tuple[str, int], int]
"""(topic, partition) -> offset of the next event to read."""


OnDeadLetter = Callable[[DeadLetter], None]
"""Called with each record that a reader passes over: its place, its key, the reason."""


class LogUnavailable(RuntimeError):
    """The log did not answer or acknowledge within the limit; the text names the servers and how long was waited."""


class UnknownTopic(LogUnavailable):
    """The topic does not exist on the log; the text names it and the remedy."""


class EventTooLarge(ValueError):
    """The event has more bytes than the log takes; the text names its type, its size and the limit."""


class UnreadableEvent(DeadEnd):
    """An event on a STRICT topic could not be decoded; the text names topic, partition, offset and the reason."""


class Follower(Protocol):
    """Reads topics as they grow, each partition in order. Positions are the reader's own unless it was given a group."""

    def poll(self, timeout: float, limit: int = 1000) -> list[Recorded]:
        """Up to `limit` events; an empty list after `timeout` seconds without any."""

    def commit(self, positions: Offsets | None = None) -> None:
        """Store the positions of all that `poll` has returned, or `positions`, under the group (error where there is none).
        What was passed over on the way stands among the dead letters first."""

    def positions(self) -> dict[tuple[str, int], int]:
        """Next offset a partition."""

    def lag(self) -> int:
        """Events that stand on the log and were not returned yet, over all partitions."""

    def at_end(self) -> bool:
        """Whether everything that stood on the log when following began (or at the last call of `mark_end`) was returned."""

    def mark_end(self) -> None:
        """Note the present ends as the mark for `at_end`."""

    @property
    def dead_lettered(self) -> int:
        """How many records this follower passed over."""

    def close(self) -> None: ...


class Log(Protocol):
    """One run's log."""

    run: str

    def append(self, event: Event, *, cause: str | None = None, id: str | None = None, at: int | None = None) -> Future[Place]:
        """Put `event` on its topic under its key. The future resolves when all in-sync replicas have it, or fails with
        LogUnavailable within `kafka.delivery_timeout`. `id` is given for derived events; `at` defaults to the clock
        (derived events pass their cause's time)."""

    def append_all(self, events: Sequence[Event], *, cause: str | None = None, timeout: float = 30.0) -> list[Place]:
        """Append in order and wait for every acknowledgement."""

    def read(self, topic: str, *, start: Offsets | None = None, end: Offsets | None = None) -> Iterator[Recorded]:
        """A topic from `start` (default: its beginning) to `end` (default: its end at the time of the call), partition by
        partition. Ends also where offsets have holes (aborted transactions)."""

    def read_raw(self, topic: str, *, start: Offsets | None = None, end: Offsets | None = None) -> Iterator[Raw]:
        """The records of a topic as they stand, bad ones too: nothing is decoded, so whole histories are read fast. Each
        partition comes in its order; between partitions there is none. With `end`, only the partitions that it names."""

    def follow(
        self,
        topics: Sequence[str],
        *,
        start: Offsets | None = None,
        from_end: bool = False,
        group: str | None = None,
        reader: str = "",
        on_dead_letter: OnDeadLetter | None = None,
    ) -> Follower:
        """Follow topics from `start`, from the end, from the group's committed positions (beginning where it has none), or
        from the beginning. `reader` (default: the group) signs the dead letters; `on_dead_letter` hears of each one."""

    @property
    def dead_lettered(self) -> int:
        """How many records the readers of this handle passed over."""

    def ends(self, topics: Sequence[str]) -> dict[tuple[str, int], int]:
        """Offset after the last event, a partition."""

    def flush(self, timeout: float = 30.0) -> None:
        """Wait until everything appended is acknowledged; LogUnavailable where that takes longer."""

    def close(self) -> None: ...

"""The base of the consumers: follow topics, handle, commit what was handled, and nothing past it.

A consumer that acts on single events keeps its positions under a group of its own; one that folds (trainer, scheduler) has no
group and reads from the beginning, or from where `start` says (analytics: its tables' positions).

promises  at least once: an event whose handling raised is handled again after the restart, and the process stops with the event's
          place in the error; positions are committed only behind what was handled and settled; a stop request finishes the batch
          at hand.
"""

from __future__ import annotations

import logging
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

from gyre_engine.dead_end import DeadEnd
from gyre_engine.events import Recorded
from gyre_engine.log.catching_up import read_until
from gyre_engine.log.intake import bury
from gyre_engine.log.port import Follower, Log, LogUnavailable, Offsets, Place, UnknownTopic
from gyre_engine.signals import stop_event

log = logging.getLogger(__name__)


class HandlingFailed(RuntimeError):
    """A consumer could not handle an event; the text names the consumer and where the event stands."""


class NeverHandled(HandlingFailed, DeadEnd):
    """The same, where the event stays one that cannot be handled."""


@dataclass(frozen=True, slots=True)
class Reading:
    """How a consumer reads. `batch`: events a poll at most; `commit_seconds`: positions are stored no more often than this."""

    batch: int = 500
    poll_seconds: float = 0.5
    commit_seconds: float = 1.0
    lag_seconds: float = 5.0
    """How old the lag in the health may be."""
    away_seconds: float = 120.0
    """How long the log may be away before the consumer gives up; until then it handles what it has and waits."""


@dataclass(frozen=True, slots=True)
class Health:
    """How a consumer is doing. `last_event_at`: time of the last handled event by its producer, microseconds, 0 before any."""

    name: str
    running: bool
    handled: int
    dead_lettered: int
    lag: int
    last_event_at: int
    failure: str = ""

    def as_fields(self) -> dict[str, Any]:
        """The same as a plain map."""
        return asdict(self)


Report = Callable[[Health], None]
"""Hears of a consumer's health whenever it was measured."""


class Consumer(ABC):
    """Reads `topics` and handles every event. Subclasses write `handle` (or `handle_batch` as well), and what else they need.

    name:  of the consumer, and of its group
    """

    name: str
    topics: tuple[str, ...]

    def __init__(self, log: Log, reading: Reading | None = None, report: Report | None = None) -> None:
        self.log = log
        self.reading = reading or Reading()
        self.is_caught_up = False
        """Whether everything that stood on the topics when following began was handled."""
        self.stopping = threading.Event()
        """Set when the consumer is to end."""
        self._to_end = False
        self._report = report
        self._follower: Follower | None = None
        self._handled: dict[tuple[str, int], int] = {}
        self._health = Health(self.name, False, 0, 0, 0, 0)
        self._commit_at = self._measure_at = 0.0
        self._away_since: float | None = None

    @abstractmethod
    def handle(self, record: Recorded) -> None:
        """Handle one event. What it raises stops the process; call `bury` for an event that is bad in itself."""

    def handle_batch(self, records: Sequence[Recorded]) -> None:
        """Handle a poll's events; here one by one. One that overrides it handles all of them or raises."""
        for record in records:
            with self._naming(record):
                self.handle(record)
            self._note(record)

    def idle(self) -> None:  # noqa: B027
        """Called after each poll, also an empty one: for what happens by time, and for acting on what was read."""

    def caught_up(self) -> None:  # noqa: B027
        """Called once, before the first `idle` that sees everything that stood on the log at the start."""

    def patience(self) -> float:
        """Seconds that the next poll may wait for an event."""
        return self.reading.poll_seconds

    def group(self) -> str | None:
        """Where positions are kept; None for a consumer that reads from `start` every time."""
        return self.name

    def start(self) -> Offsets | None:
        """Where a consumer without a group begins (default: the beginning)."""
        return None

    def settled(self) -> bool:
        """Whether all that was handled is done with, so that positions may be committed."""
        return True

    def last_words(self, follower: Follower) -> None:  # noqa: B027
        """Called when a stop was asked for, before the last commit: for one that holds back what it has read."""

    def shut(self) -> None:  # noqa: B027
        """Called after the last commit, also where following failed."""

    def bury(self, record: Recorded, reason: str) -> None:
        """Send an event that cannot be handled, whatever is tried, to the dead letters, and go on."""
        bury(self.log, record, self.name, reason).result(30.0)
        log.warning("%s buries %s: %s", self.name, _place(record), reason)

    def stop(self) -> None:
        """Have `run` finish its batch, commit and return. May be called from a signal handler or another thread."""
        self.stopping.set()

    def read_on(self, done: Callable[[], bool], what: str, limit_s: float = 60.0) -> None:
        """Handle further events until `done`: for one that acts and then reads its own words back. Raises LogUnavailable(what)."""
        if self._follower is None:
            raise RuntimeError(f"{self.name} reads on before it runs")
        read_until(self._follower, self._handle_one, done, what, limit_s)

    def health(self) -> Health:
        """How it was doing when that was last measured."""
        return self._health

    def run_to_end(self) -> None:
        """Handle what stands on the log now, settle it, and return. Raises as `run`."""
        self._to_end = True
        self.run()

    def run(self) -> None:
        """Follow until `stop`. Raises HandlingFailed; what stands before the failed event is committed."""
        self._follower = follower = self._begin()
        self._handled, self.is_caught_up = {}, False
        self._update(running=True)
        try:
            self._follow(follower)
            self.last_words(follower)
        except Exception as error:
            self._update(failure=str(error))
            raise
        finally:
            self._close(follower)

    def _begin(self) -> Follower:
        while True:
            try:
                follower = self.log.follow(self.topics, group=self.group(), start=self.start(), reader=self.name)
            except LogUnavailable as error:
                self._bear(error)
                if self.stopping.wait(0.2):
                    raise
            else:
                self._away_since = None
                return follower

    def _follow(self, follower: Follower) -> None:
        while not self.stopping.is_set():
            records = follower.poll(self.patience(), self.reading.batch)
            if records:
                self._handle_all(records)
            if not self.is_caught_up and follower.at_end():
                self.is_caught_up = True
                self.caught_up()
            self.idle()
            self._handled = follower.positions()
            try:
                self._keep_house(follower, time.monotonic())
            except LogUnavailable as error:
                self._bear(error)
            if self._to_end and self.is_caught_up and self.settled():
                return

    def _keep_house(self, follower: Follower, now: float) -> None:
        if now >= self._commit_at and self.group() is not None and self.settled():
            follower.commit()
            self._commit_at = now + self.reading.commit_seconds
        if now >= self._measure_at:
            self._tell(lag=follower.lag(), dead_lettered=follower.dead_lettered)
            self._measure_at = now + self.reading.lag_seconds
        self._away_since = None

    def _bear(self, error: LogUnavailable) -> None:
        """Put up with a log that is away, for as long as the settings say."""
        if isinstance(error, UnknownTopic):
            raise error
        now = time.monotonic()
        if self._away_since is None:
            self._away_since = now
            log.warning("%s waits up to %g s for the log: %s", self.name, self.reading.away_seconds, error)
        if now - self._away_since > self.reading.away_seconds:
            raise error

    def _handle_one(self, record: Recorded) -> None:
        self._handle_all([record])

    def _handle_all(self, records: Sequence[Recorded]) -> None:
        with self._naming(records[0], len(records)):
            self.handle_batch(records)
        self._update(handled=self._health.handled + len(records), last_event_at=records[-1].at)

    def _note(self, record: Recorded) -> None:
        self._handled[record.topic, record.partition] = record.offset + 1

    @contextmanager
    def _naming(self, record: Recorded, count: int = 1) -> Iterator[None]:
        try:
            yield
        except HandlingFailed:
            raise
        except Exception as error:
            which = _place(record) if count == 1 else f"a batch of {count} from {_place(record)} on"
            said = f"{self.name} could not handle {which}"
            if isinstance(error, DeadEnd):
                raise NeverHandled(f"{said}: {error}") from error
            raise HandlingFailed(f"{said}: {type(error).__name__}: {error}") from error

    def _close(self, follower: Follower) -> None:
        """A stop asks the log for nothing more than to keep the positions."""
        try:
            if self.group() is not None and self.settled():
                follower.commit(self._handled)
        finally:
            self._tell(running=False, dead_lettered=follower.dead_lettered)
            try:
                self.shut()
            finally:
                follower.close()

    def _tell(self, **changes: Any) -> None:
        self._update(**changes)
        if self._report is not None:
            self._report(self._health)

    def _update(self, **changes: Any) -> None:
        self._health = Health(**{**asdict(self._health), **changes})


def serve(consumer: Consumer, stop: threading.Event | None = None) -> None:
    """Run a consumer as its process' main work until SIGTERM, SIGINT or `stop`: the batch at hand is finished and committed."""
    consumer.stopping = stop or stop_event()
    consumer.run()


def _place(record: Recorded) -> str:
    return f"{record.event.TYPE} ({Place.of(record)}, id {record.id})"

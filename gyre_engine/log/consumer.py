"""The base of the consumers: follow topics, handle, commit what was handled, and nothing past it.

promises  at least once: an event whose handling raised is handled again after the restart, and the process stops with the event's
          place in the error; positions are committed only behind what was handled; a stop request finishes the batch at hand.
"""

from __future__ import annotations

import logging
import signal
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

from gyre_engine.events import Recorded
from gyre_engine.log.intake import bury
from gyre_engine.log.port import Follower, Log, LogUnavailable, OnDeadLetter, UnknownTopic

log = logging.getLogger(__name__)


class HandlingFailed(RuntimeError):
    """A consumer could not handle an event; the text names the consumer and where the event stands."""


@dataclass(frozen=True, slots=True)
class ConsumerSettings:
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


class Consumer(ABC):
    """Reads `topics` under the group `name` and handles every event. Subclasses write `handle`, or `handle_batch` as well."""

    name: ClassVar[str]
    topics: ClassVar[tuple[str, ...]]

    def __init__(self, log: Log, settings: ConsumerSettings | None = None) -> None:
        self.log = log
        self.settings = settings or ConsumerSettings()
        self._stop = threading.Event()
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
        """Called after each poll, also an empty one: for what happens by time."""

    def on_dead_letter(self) -> OnDeadLetter | None:
        """What is to hear of records that could not be read (default: nothing)."""
        return None

    def open(self) -> None:  # noqa: B027
        """Called before the first poll."""

    def shut(self) -> None:  # noqa: B027
        """Called after the last commit."""

    def bury(self, record: Recorded, reason: str) -> None:
        """Send an event that cannot be handled, whatever is tried, to the dead letters, and go on."""
        bury(self.log, record, self.name, reason).result(30.0)
        log.warning("%s buries %s: %s", self.name, _place(record), reason)

    def stop(self) -> None:
        """Have `run` finish its batch, commit and return. May be called from a signal handler or another thread."""
        self._stop.set()

    def health(self) -> Health:
        return self._health

    def run(self) -> None:
        """Follow until `stop`. Raises HandlingFailed; what stands before the failed event is committed."""
        follower = self._begin()
        self._handled = {}
        self._update(running=True)
        try:
            self.open()
            self._follow(follower)
        except Exception as error:
            self._update(failure=str(error))
            raise
        finally:
            self._close(follower)

    def _begin(self) -> Follower:
        while True:
            try:
                follower = self.log.follow(self.topics, group=self.name, on_dead_letter=self.on_dead_letter())
            except LogUnavailable as error:
                self._bear(error)
                if self._stop.wait(0.2):
                    raise
            else:
                self._away_since = None
                return follower

    def _follow(self, follower: Follower) -> None:
        while not self._stop.is_set():
            records = follower.poll(self.settings.poll_seconds, self.settings.batch)
            if records:
                self._handle_all(records)
            self.idle()
            self._handled = follower.positions()
            try:
                self._keep_house(follower, time.monotonic())
            except LogUnavailable as error:
                self._bear(error)

    def _keep_house(self, follower: Follower, now: float) -> None:
        if now >= self._commit_at:
            follower.commit()
            self._commit_at = now + self.settings.commit_seconds
        if now >= self._measure_at:
            self._update(lag=follower.lag(), dead_lettered=follower.dead_lettered)
            self._measure_at = now + self.settings.lag_seconds
        self._away_since = None

    def _bear(self, error: LogUnavailable) -> None:
        """Put up with a log that is away, for as long as the settings say."""
        if isinstance(error, UnknownTopic):
            raise error
        now = time.monotonic()
        if self._away_since is None:
            self._away_since = now
            log.warning("%s waits up to %g s for the log: %s", self.name, self.settings.away_seconds, error)
        if now - self._away_since > self.settings.away_seconds:
            raise error

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
            raise HandlingFailed(f"{self.name} could not handle {which}: {type(error).__name__}: {error}") from error

    def _close(self, follower: Follower) -> None:
        try:
            follower.commit(self._handled)
            self._update(running=False, lag=follower.lag(), dead_lettered=follower.dead_lettered)
            self.shut()
        finally:
            follower.close()

    def _update(self, **changes: Any) -> None:
        self._health = Health(**{**asdict(self._health), **changes})


def serve(consumer: Consumer) -> None:
    """Run a consumer as its process' main work: SIGTERM and SIGINT finish the batch at hand, commit, and return."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda _number, _frame: consumer.stop())
    consumer.run()


def _place(record: Recorded) -> str:
    return f"{record.event.TYPE} ({record.topic}, partition {record.partition}, offset {record.offset}, id {record.id})"

"""Ingest: every topic of a run into its table.

reads     all topics of the run, and `runs`
writes    ClickHouse: one table a topic
promises  every event on the log becomes a row, once, whoever dies when: positions are the tables' own, batches carry a token that
          names them, and the tables keep one row an event id; inserting takes at most a set share of one core
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from consumers.analytics.schema import tables
from consumers.analytics.settings import AnalyticsSettings
from consumers.analytics.store import RowsRefused, Store
from gyre_engine.events import Recorded
from gyre_engine.log.consumer import Consumer, Reading, Report
from gyre_engine.log.intake import DEAD_LETTERS
from gyre_engine.log.names import RUNS
from gyre_engine.log.port import TOPICS, Follower, Log, Offsets, Place

POLL_LIMIT = 2_000
DRAIN_SECONDS = 20.0
"""How long a stop may take to insert what stands on the log."""
log = logging.getLogger(__name__)


@dataclass(slots=True)
class Batch:
    """Events of one topic that wait for their insert, in the order in which they were read; `since`: the oldest one's arrival."""

    since: float
    records: list[Recorded] = field(default_factory=list)
    weight: int = 0

    def add(self, record: Recorded) -> None:
        self.records.append(record)
        self.weight += weight(record)


@dataclass(slots=True)
class Budget:
    """CPU seconds that inserting may use: they accrue at `share` of a core, and at most `most` of them are kept."""

    share: float
    most: float = 0.25
    left: float = 0.25
    at: float = 0.0

    def accrue(self, now: float) -> None:
        self.left = min(self.most, self.left + (now - self.at) * self.share)
        self.at = now


class Ingest(Consumer):
    """Follows a run's log from where the tables end, and fills them; a stop reads to the end that the log has then."""

    name = "analytics"

    def __init__(
        self, log_: Log, store: Store, settings: AnalyticsSettings, clock: Callable[[], float] = time.monotonic,
        report: Report | None = None,
    ) -> None:  # fmt: skip
        self.topics = tuple(topic for topic in (*TOPICS, RUNS) if topic in tables())
        super().__init__(log_, Reading(batch=POLL_LIMIT), report)
        self._store = store
        self._settings = settings
        self._clock = clock
        self._batches: dict[str, Batch] = {}
        self._budget = Budget(settings.share, at=clock())
        self.inserted = 0
        self.passed_over = 0

    def group(self) -> None:
        """None: positions are the tables' own (log-rules, 17)."""

    def start(self) -> Offsets:
        return self._store.positions(self.log.run, self.log.ends(self.topics))

    def handle(self, record: Recorded) -> None:
        if record.topic not in self._batches:
            self._batches[record.topic] = Batch(self._clock())
        self._batches[record.topic].add(record)

    def idle(self) -> None:
        self._insert_due()

    def patience(self) -> float:
        """Seconds until something is due: reading wakes up seldom where nothing happens."""
        now = self._clock()
        self._budget.accrue(now)
        oldest = min((batch.since for batch in self._batches.values()), default=now)
        until_due = oldest + self._settings.flush_seconds - now
        until_paid = -self._budget.left / self._settings.share
        return min(max(until_due, until_paid, 0.01), self._settings.flush_seconds)

    def _insert_due(self) -> None:
        """Oldest first, while the budget lasts; what is full or has waited too long is due whatever it costs."""
        now = self._clock()
        self._budget.accrue(now)
        for topic, batch in sorted(self._batches.items(), key=lambda item: item[1].since):
            waited = now - batch.since
            full = len(batch.records) >= self._settings.flush_rows or batch.weight >= self._settings.flush_bytes
            paid = waited >= self._settings.flush_seconds and self._budget.left > 0
            if full or paid or waited >= self._settings.flush_limit_seconds:
                self._insert(topic)

    def _insert(self, topic: str) -> None:
        began = time.process_time()
        for piece in pieces(self._batches.pop(topic).records, self._settings.flush_bytes):
            self._insert_piece(topic, piece)
        self._budget.left -= time.process_time() - began

    def _insert_piece(self, topic: str, records: list[Recorded]) -> None:
        """Insert; where a row is refused, halve until it stands alone, and send it to the dead letters."""
        try:
            self._store.insert(topic, records)
            self.inserted += len(records)
        except RowsRefused as error:
            if len(records) > 1:
                middle = len(records) // 2
                self._insert_piece(topic, records[:middle])
                self._insert_piece(topic, records[middle:])
            else:
                self._pass_over(records[0], str(error))

    def _pass_over(self, record: Recorded, reason: str) -> None:
        self.passed_over += 1
        log.error("analytics passes over %s: %s", Place.of(record), reason)
        if record.topic != DEAD_LETTERS:
            self.bury(record, reason)

    def flush(self) -> None:
        """Insert everything that waits."""
        for topic in list(self._batches):
            self._insert(topic)

    def last_words(self, follower: Follower) -> None:
        """Read to the end that the log has now, and insert it all, within DRAIN_SECONDS."""
        follower.mark_end()
        end = self._clock() + DRAIN_SECONDS
        while not follower.at_end() and self._clock() < end:
            for record in follower.poll(0.05, POLL_LIMIT):
                self.handle(record)
            if sum(batch.weight for batch in self._batches.values()) >= self._settings.flush_bytes:
                self.flush()
        self.flush()
        if not follower.at_end():
            log.warning("analytics stopped before it had read everything: the rest is read at the next start")


def pieces(records: list[Recorded], limit: int) -> list[list[Recorded]]:
    """Batches of at most about `limit` bytes, so that a few huge calls do not make one huge insert."""
    found: list[list[Recorded]] = [[]]
    size = 0
    for record in records:
        size += weight(record)
        if found[-1] and size > limit:
            found.append([])
            size = weight(record)
        found[-1].append(record)
    return found


def weight(record: Recorded) -> int:
    """About how many bytes its row has: what grows is the arrays of a call, 6 to 20 characters an entry."""
    new, out = getattr(record.event, "new_input_ids", ()), getattr(record.event, "output_ids", ())
    return 2_000 + 6 * len(new) + 30 * len(out)

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
from consumers.analytics.store import RUNS, RowsRefused, Store
from gyre_engine.events import Recorded
from gyre_engine.log.intake import DEAD_LETTERS, bury
from gyre_engine.log.port import TOPICS, Follower, Log

POLL_LIMIT = 2_000
DELIVERY_SECONDS = 60.0
"""How long the log may take to acknowledge a dead letter."""
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


class Ingest:
    """Follows a run's log and fills the tables. `step()` is one round; `drain()` reads to the present end."""

    def __init__(self, log_: Log, store: Store, settings: AnalyticsSettings, clock: Callable[[], float] = time.monotonic) -> None:
        self._store = store
        self._settings = settings
        self._clock = clock
        topics = [topic for topic in (*TOPICS, RUNS) if topic in tables()]
        start = store.positions(log_.run, log_.ends(topics))
        self._follower: Follower = log_.follow(topics, start=start, reader="analytics")
        self._batches: dict[str, Batch] = {}
        self._budget = Budget(settings.share, at=clock())
        self._log = log_
        self.inserted = 0
        self.passed_over = 0

    def step(self) -> None:
        """Read what there is, for at most as long as a batch may wait, and insert what is due."""
        self._take(self._follower.poll(self._patience(), POLL_LIMIT))
        self._insert_due()

    def _patience(self) -> float:
        """Seconds until something is due: reading wakes up seldom where nothing happens."""
        now = self._clock()
        self._budget.accrue(now)
        oldest = min((batch.since for batch in self._batches.values()), default=now)
        until_due = oldest + self._settings.flush_seconds - now
        until_paid = -self._budget.left / self._settings.share
        return min(max(until_due, until_paid, 0.01), self._settings.flush_seconds)

    def _take(self, records: list[Recorded]) -> None:
        now = self._clock() if records else 0.0
        for record in records:
            if record.topic not in self._batches:
                self._batches[record.topic] = Batch(now)
            self._batches[record.topic].add(record)

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
        log.error("analytics passes over %s, partition %d, offset %d: %s", record.topic, record.partition, record.offset, reason)
        if record.topic != DEAD_LETTERS:
            bury(self._log, record, "analytics", reason).result(DELIVERY_SECONDS)

    def flush(self) -> None:
        """Insert everything that waits."""
        for topic in list(self._batches):
            self._insert(topic)

    def drain(self, timeout: float) -> bool:
        """Read to the end that the log has now, and insert it all. False where that took longer than `timeout` seconds."""
        self._follower.mark_end()
        end = self._clock() + timeout
        while not self._follower.at_end() and self._clock() < end:
            self._take(self._follower.poll(0.05, POLL_LIMIT))
            if sum(batch.weight for batch in self._batches.values()) >= self._settings.flush_bytes:
                self.flush()
        self.flush()
        return self._follower.at_end()

    def close(self) -> None:
        self._follower.close()


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

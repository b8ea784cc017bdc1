"""Drives one derivation: rebuilds its state at a start, applies each record once, appends what follows, acknowledges
in order.

Why state is memory, rebuilt from the log, and no Faust table: a table's changelog may run ahead of the committed
offset after a kill, and costs a write an event. Here the log is the only state. At a start the sources are read up to
the committed positions and folded again, an order of magnitude faster than Faust delivers, with the outputs held back;
decisive outputs that the log lacks are appended.

An event is acknowledged to Faust only when everything derived from it is acknowledged by the log, and strictly in the
order of delivery: Faust commits past an event at the head of a partition that is not acknowledged yet.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from gyre_engine.events import CodecError, Recorded
from gyre_engine.log.kafka import KafkaLog
from gyre_engine.log.port import Place, Raw
from streams.derivation import Derivation, Derived, Position, wanted

log = logging.getLogger(__name__)
PENDING_LIMIT = 4000
"""Events whose outputs the log has not acknowledged; beyond it no further event is taken."""

Stop = Callable[[str], None]
"""Ends the process with a message; does not return."""


@dataclass(slots=True)
class _Pending:
    """A delivered event and what was appended for it."""

    ack: Callable[[], Any]
    outputs: Sequence[Future[Place]]


class Driver:
    """One derivation on one log. `group`: the Faust app's name within the run, under which positions are committed."""

    def __init__(self, to: KafkaLog, derivation: Derivation, group: str, stop: Stop) -> None:
        self.derivation = derivation
        self.applied: dict[Position, int] = {}
        self.dead_letters = 0
        self._decisive = frozenset(kind.TYPE for kind in derivation.decisive)
        self._log = to
        self._group = group
        self._stop = stop
        self._pending: deque[_Pending] = deque()
        self._waiting = asyncio.Event()

    def rebuild(self) -> None:
        """State as of the committed positions. Decisive outputs that the log lacks are appended and waited for."""
        known = self._known()
        follower = self._log.follow(self.derivation.sources, group=self._group)
        until = follower.positions()
        follower.close()
        missing: list[Derived] = []
        for topic in self.derivation.sources:
            for raw in self._log.read_raw(topic, end={p: o for p, o in until.items() if p[0] == topic}):
                missing.extend(d for d in self._derive(raw) if d.event.TYPE in self._decisive and d.id not in known)
        self.applied = until
        for future in [self._append(derived) for derived in missing]:
            future.result(self._log.settings.delivery_timeout_s)
        log.info("%s: state rebuilt from %d records", self.derivation.name, sum(until.values()))

    def handle(self, raw: Raw, ack: Callable[[], Any]) -> None:
        """Apply a delivered record, append what follows, and acknowledge it later. A record applied before is only
        acknowledged.
        """
        where = (raw.topic, raw.partition)
        expected = self.applied.get(where, 0)
        if raw.offset > expected:
            self._catch_up(where, expected, raw.offset)
        fresh = raw.offset >= expected
        self._pending.append(_Pending(ack, [self._append(d) for d in self._derive(raw)] if fresh else ()))
        if fresh:
            self.applied[where] = raw.offset + 1
        self.settle()
        self._waiting.set()

    def settle(self) -> None:
        """Acknowledge from the oldest on whatever has all its outputs on the log."""
        pending = self._pending
        while pending and all(future.done() for future in pending[0].outputs):
            oldest = pending.popleft()
            for future in oldest.outputs:
                error = future.exception()
                if error is not None:
                    self._stop(f"{self.derivation.name}: {error}")
            oldest.ack()

    async def room(self) -> None:
        """Wait while too much is unacknowledged; the log's delivery timeout bounds it."""
        while len(self._pending) > PENDING_LIMIT:
            await asyncio.sleep(0.005)
            self.settle()

    async def keep_settling(self) -> None:
        """Acknowledge what is left while no further event comes."""
        while True:
            await self._waiting.wait()
            self._waiting.clear()
            while self._pending:
                await asyncio.sleep(0.01)
                self.settle()

    async def drain(self) -> None:
        """Wait until everything delivered is acknowledged (a clean stop); the log's delivery timeout bounds it."""
        while self._pending:
            await asyncio.sleep(0.005)
            self.settle()

    def _derive(self, raw: Raw) -> Sequence[Derived]:
        try:
            return self.derivation.observe(raw)
        except CodecError as error:
            self.dead_letters += 1
            log.warning("%s passes over %s: %s", self.derivation.name, raw.place, error)
            return self.derivation.reject(raw, str(error))

    def _append(self, derived: Derived) -> Future[Place]:
        return self._log.append(derived.event, cause=derived.cause, id=derived.id, at=derived.at)

    def _catch_up(self, where: Position, start: int, end: int) -> None:
        """Fold records that another worker handled and committed (a rebalance), or pass over a hole."""
        for raw in self._log.read_raw(where[0], start={where: start}, end={where: end}):
            self._derive(raw)
        self.applied[where] = end

    def _known(self) -> set[str]:
        """Ids of the decisive events on the log; the derivation hears of each."""
        known: set[str] = set()
        for topic in sorted({kind.TOPIC for kind in self.derivation.decisive}):
            for raw in self._log.read_raw(topic):
                record = self._decided(raw)
                if record is not None:
                    known.add(record.id)
                    self.derivation.begin(record.event)
        return known

    def _decided(self, raw: Raw) -> Recorded | None:
        """A decisive event; None for what else is there, also for what cannot be read."""
        try:
            return wanted(raw, self._decisive)
        except CodecError:
            return None

"""Water level: how many executions are out there, and what the cells can take.

reads     executions (by execution), cells (by cell), commands (by run), trajectories (by group), training (by run)
writes    water-level (by run), whenever it changes; dead-letters for records that nobody else reports
promises  every execution counts once, whatever is delivered twice; nothing here reads a clock; a snapshot's id names the
          positions that it was taken at; an unreadable record of training or commands stops the process (log-rules, 16)

Records of executions that cannot be read are admission's to report. One worker must read all partitions.
"""

from __future__ import annotations

from collections.abc import Sequence

from gyre_engine.events import Event, derived_id
from gyre_engine.events.cells import (
    CellEnded,
    CellHealth,
    CellLost,
    CellStarted,
    LifeChanged,
    RoleChanged,
    SchedulerElected,
    SwitchRole,
    WaterLevelChanged,
)
from gyre_engine.events.executions import Discarded, Dispatched, Finished, Started
from gyre_engine.events.training import CoreElected, GroupAdmitted, StepCommitted, StepOpened
from gyre_engine.log.intake import unreadable
from gyre_engine.log.port import STRICT, Raw
from gyre_engine.scheduling.water_level import WaterLevel
from streams.derivation import Derived, Position, dead_letter, wanted

VERSION = 2
"""2: what the scheduler says counts, too: who is lost or leaves serves nobody."""
_WANTED = frozenset(
    cls.TYPE
    for cls in (
        *(Dispatched, Started, Finished, Discarded),
        *(CellStarted, RoleChanged, LifeChanged, CellHealth, CellEnded),
        *(SchedulerElected, SwitchRole, CellLost),
        *(GroupAdmitted, CoreElected, StepOpened, StepCommitted),
    )
)


class WaterLevelStream:
    """The derivation around gyre_engine.scheduling.water_level."""

    name = "water-level"
    sources: tuple[str, ...] = ("executions", "cells", "commands", "trajectories", "training")
    decisive: tuple[type[Event], ...] = ()
    whole = True

    def __init__(self, config_hash: str = "") -> None:
        self.config_hash = config_hash
        self.level = WaterLevel()
        self._said: WaterLevelChanged | None = None
        self._positions: dict[Position, int] = {}

    def begin(self, event: Event) -> None:
        """Nothing: the level follows from its sources alone."""

    def observe(self, raw: Raw) -> Sequence[Derived]:
        """The new level where it changed."""
        self._positions[raw.topic, raw.partition] = raw.offset
        record = wanted(raw, _WANTED)
        if record is None:
            return ()
        self.level.observe(record.event)
        now = self.level.snapshot()
        if now == self._said:
            return ()
        self._said = now
        return (Derived(now, self._id(), record.id, record.at),)

    def reject(self, raw: Raw, reason: str) -> Sequence[Derived]:
        """A dead letter where nobody else writes it. Raises UnreadableEvent on the ledger."""
        if raw.topic in STRICT:
            raise unreadable(raw, self.name, reason)
        return () if raw.topic == "executions" else (dead_letter(raw, self.name, reason),)

    def _id(self) -> str:
        at = tuple(f"{topic}/{partition}/{offset}" for (topic, partition), offset in sorted(self._positions.items()))
        return derived_id(at, self.name, VERSION, self.config_hash)

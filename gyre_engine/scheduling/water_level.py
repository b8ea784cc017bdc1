"""The water level: how many executions are still out there, and what could serve or train on them (method.md, 2).

A fold whose result does not depend on how partitions interleave: an execution counts once however often its end is
told, and a group that a committed step consumed stays consumed whether its admission was read before or after.
"""

from __future__ import annotations

from gyre_engine.events import Event
from gyre_engine.events.cells import (
    CellEnded,
    CellHealth,
    CellLost,
    CellRole,
    CellStarted,
    LifeChanged,
    RoleChanged,
    SchedulerElected,
    SwitchRole,
    WaterLevelChanged,
)
from gyre_engine.events.executions import Discarded, Dispatched, Finished, Started
from gyre_engine.events.training import CoreElected, GroupAdmitted, StepCommitted, StepOpened
from gyre_engine.scheduling.cells import CellState, Fleet, observe


class WaterLevel:
    """d(t), p(t), f(t) of one run, its cells, and its groups that no committed step has consumed.

    Memory: the executions that are out, the cells, and one name a group.
    """

    def __init__(self) -> None:
        self.dispatched = 0
        self.started = 0
        self.terminated = 0
        self.fleet = Fleet()
        self.core_epoch = 0
        self.committed_step = 0
        self._out: dict[str, bool] = {}
        self._admitted: set[str] = set()
        self._consumed: set[str] = set()
        self._opened: tuple[int, int, tuple[str, ...]] | None = None

    @property
    def level(self) -> int:
        """w = d - f."""
        return self.dispatched - self.terminated

    def observe(self, event: Event) -> None:
        """Take in the next event of `executions`, `cells`, `commands`, `trajectories` or `training`, each partition in its order."""
        match event:
            case Dispatched():
                self._dispatch(event.execution)
            case Started():
                self._start(event.execution)
            case Finished() | Discarded():
                self._terminate(event.execution)
            case CellStarted() | RoleChanged() | LifeChanged() | CellHealth() | CellEnded():
                self.fleet = observe(self.fleet, event)
            case SchedulerElected() | SwitchRole() | CellLost():
                self.fleet = observe(self.fleet, event)
            case GroupAdmitted():
                self._admitted.add(event.group)
            case CoreElected() | StepOpened() | StepCommitted():
                self._ledger(event)

    def snapshot(self) -> WaterLevelChanged:
        """The level now. A cell that is not healthy serves nobody and is named nowhere, nor is one that is lost or leaves."""
        cells = self.fleet.ordered
        named = {role: tuple(s.cell for s in cells if s.role is role and _counts(s)) for role in CellRole}
        return WaterLevelChanged(
            dispatched=self.dispatched,
            started=self.started,
            terminated=self.terminated,
            level=self.level,
            capacity_per_cell=max((state.capacity for state in cells), default=0),
            sampling_capacity=sum(self.fleet.cells[name].capacity for name in named[CellRole.SAMPLING]),
            sampling_cells=named[CellRole.SAMPLING],
            training_cells=named[CellRole.TRAINING],
            switching_cells=named[CellRole.SWITCHING],
            ready_groups=len(self._admitted - self._consumed),
            committed_step=self.committed_step,
        )

    def _dispatch(self, execution: str) -> None:
        if execution not in self._out:
            self._out[execution] = False
            self.dispatched += 1

    def _start(self, execution: str) -> None:
        if self._out.get(execution) is False:
            self._out[execution] = True
            self.started += 1

    def _terminate(self, execution: str) -> None:
        # The first end counts (log-rules, 11); a second one finds the execution gone.
        if self._out.pop(execution, None) is not None:
            self.terminated += 1

    def _ledger(self, event: CoreElected | StepOpened | StepCommitted) -> None:
        if event.core_epoch < self.core_epoch:
            return
        if isinstance(event, CoreElected):
            self.core_epoch, self._opened = event.core_epoch, None
        elif isinstance(event, StepOpened):
            self._opened = (event.step, event.attempt, event.groups)
        elif self._opened is not None and self._opened[:2] == (event.step, event.attempt):
            self._consumed.update(self._opened[2])
            self.committed_step, self._opened = event.step, None


def _counts(state: CellState) -> bool:
    """A training cell's engine serves nobody and its health says nothing about its trainer."""
    return state.healthy or state.role is not CellRole.SAMPLING

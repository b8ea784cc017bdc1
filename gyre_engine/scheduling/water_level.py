"""The water level: how many executions are still out there, and what could serve or train on them (method.md, 2).

A fold whose result does not depend on how partitions interleave: an execution counts once however often its end is
told, and a group that a committed step consumed stays consumed whether its admission was read before or after.
"""

from __future__ import annotations

from dataclasses import dataclass

from gyre_engine.events import Event
from gyre_engine.events.cells import CellHealth, CellRole, CellStarted, RoleChanged, WaterLevelChanged
from gyre_engine.events.executions import Discarded, Dispatched, Finished, Started
from gyre_engine.events.training import CoreElected, GroupAdmitted, StepCommitted, StepOpened


@dataclass(frozen=True, slots=True)
class CellState:
    """A cell as its latest incarnation reported it."""

    position: int
    incarnation: str
    capacity: int
    role: CellRole
    healthy: bool = True


class WaterLevel:
    """d(t), p(t), f(t) of one run, its cells, and its groups that no committed step has consumed.

    Memory: the executions that are out, the cells, and one name a group.
    """

    def __init__(self) -> None:
        self.dispatched = 0
        self.started = 0
        self.terminated = 0
        self.cells: dict[str, CellState] = {}
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
        """Take in the next event of `executions`, `cells`, `trajectories` or `training`, each partition in its
        order.
        """
        match event:
            case Dispatched():
                self._dispatch(event.execution)
            case Started():
                self._start(event.execution)
            case Finished() | Discarded():
                self._terminate(event.execution)
            case CellStarted() | RoleChanged() | CellHealth():
                self._cell(event)
            case GroupAdmitted():
                self._admitted.add(event.group)
            case CoreElected() | StepOpened() | StepCommitted():
                self._ledger(event)

    def snapshot(self) -> WaterLevelChanged:
        """The level now. A cell that is not healthy serves nobody and is named nowhere."""
        cells = sorted((state.position, name, state) for name, state in self.cells.items())
        named = {role: tuple(name for _, name, s in cells if s.role is role and _counts(s)) for role in CellRole}
        return WaterLevelChanged(
            dispatched=self.dispatched,
            started=self.started,
            terminated=self.terminated,
            level=self.level,
            capacity_per_cell=max((state.capacity for _, _, state in cells), default=0),
            sampling_capacity=sum(self.cells[name].capacity for name in named[CellRole.SAMPLING]),
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

    def _cell(self, event: CellStarted | RoleChanged | CellHealth) -> None:
        if isinstance(event, CellStarted):
            self.cells[event.cell] = CellState(event.position, event.incarnation, event.capacity, event.role)
            return
        state = self.cells.get(event.cell)
        if state is None or state.incarnation != event.incarnation:
            return
        role = event.role if isinstance(event, RoleChanged) else state.role
        healthy = event.healthy if isinstance(event, CellHealth) else state.healthy
        self.cells[event.cell] = CellState(state.position, state.incarnation, state.capacity, role, healthy)

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

"""What the scheduler has read, folded: roles, demand, its own standing. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

from gyre_engine.events import Recorded
from gyre_engine.events.bursts import BeginBurst
from gyre_engine.events.cells import CellRole, LeaveWanted, SwitchRole, WaterLevelChanged
from gyre_engine.events.executions import Discarded, Dispatched, Finished
from gyre_engine.events.training import EvaluationReported, GroupAdmitted
from gyre_engine.scheduling import bursts
from gyre_engine.scheduling.bursts import Bursts
from gyre_engine.scheduling.cells import CellState, Fleet, observe
from gyre_engine.scheduling.classes import ClassPlan, ready_steps
from gyre_engine.scheduling.cluster import Begin, Cell, Cluster, Decision, Demand, Switch
from gyre_engine.training.backlog import Backlog
from gyre_engine.training.ledger.fold import Ledger, apply, consumed

TOPICS = ("executions", "water-level", "cells", "commands", "trajectories", "training")


@dataclass(slots=True)
class View:
    """The cells, the executions that are out, the groups that are not consumed, and two numbers a group of the run."""

    plan: ClassPlan
    group_size: int
    fleet: Fleet = field(default_factory=Fleet)
    bursts: Bursts = field(default_factory=Bursts)
    water: WaterLevelChanged | None = None
    ledger: Ledger = field(default_factory=Ledger)
    backlog: Backlog = field(default_factory=Backlog)
    dispatched: int = 0
    """Places of training groups that were dispatched."""
    _wanted_away: dict[str, str] = field(default_factory=dict)
    """Cell -> who asked that it leave."""
    _sent: int = 0
    """Executions that were dispatched, evaluations and further attempts among them."""
    _out: set[str] = field(default_factory=set)
    _places: dict[int, int] = field(default_factory=dict)
    """Number of a training group -> the same, a bit each."""

    def see(self, record: Recorded) -> None:
        """Take one record into account."""
        match record.event:
            case WaterLevelChanged() as event:
                self.water = event
            case GroupAdmitted() as event:
                self.backlog.see(event)
            case Dispatched() as event:
                self._dispatched(event)
            case Finished() | Discarded() as event:
                self._out.discard(event.execution)
            case LeaveWanted() as event:
                self._wanted_away.setdefault(event.cell, event.by)
            case _ if record.topic == "training":
                self._ledger(record)
            case event:
                self.fleet, self.bursts = observe(self.fleet, event), bursts.observe(self.bursts, event)

    def _ledger(self, record: Recorded) -> None:
        before = self.ledger
        if isinstance(record.event, EvaluationReported):
            self.backlog.see(record.event)
        self.ledger = apply(before, record.event)
        self.backlog.consume(consumed(before, self.ledger))

    def cluster(self) -> Cluster:
        """The cells in their fixed order; one that is away, or whose command is not carried out yet, is switching."""
        states = self.fleet.ordered
        capacity = max((state.capacity for state in states), default=1)
        return Cluster(tuple(self._cell(state) for state in states), capacity)

    def _cell(self, state: CellState) -> Cell:
        return Cell(state.cell, state.position, self._role(state), state.cell in self.bursts.held_over)

    def _role(self, state: CellState) -> CellRole:
        waits = not state.healthy or self.fleet.due(state.cell) is not None
        return CellRole.SWITCHING if waits else state.role

    def to_leave(self) -> Switch | None:
        """The next cell that somebody wants away, one after the other, as all transfers are; the core holds the weights and stays.

        One that is on its way, or away for good, holds itself up and nobody else.
        """
        wanted = {name: by for name, by in self._wanted_away.items() if name in self.fleet.cells and not self.fleet.leaves(name)}
        away = {cell.name for cell in self.cluster().order if cell.role is CellRole.SWITCHING}
        if not away <= set(wanted):
            return None
        for name, by in sorted(wanted.items()):
            if self.fleet.cells[name].position != 0:
                return Switch(name, CellRole.LEFT, f"{by} asked for it")
        return None

    def demand(self) -> Demand:
        """What is out there and what could be trained now."""
        plan, step, open_step = self.plan, self.ledger.step, self.ledger.open
        over = step >= plan.steps
        ready = 0 if over else ready_steps(self.backlog.admitted, len(self.backlog.consumed), plan)
        return Demand(
            water_level=self._level(),
            to_dispatch=self._due(),
            batch_ready=ready > 0,
            burst_ready=not over and ready >= plan.burst_end(step) - step,
            step_open=open_step is not None,
            free_micro_steps=len(open_step.free) if open_step else 0,
            begun=self.bursts.begun >= plan.burst_start(step) or open_step is not None,
            blocked=self._unpublished() and bool(self.backlog.evaluations),
            over=over,
        )

    @property
    def number(self) -> int:
        """Of the last command."""
        return max(self.fleet.number, self.bursts.number)

    def command(self, decision: Decision, epoch: int) -> SwitchRole | BeginBurst:
        """The decision as a command, with what it saw."""
        number = self.number + 1
        level, capacity = self.demand().water_level, self.cluster().sampling_capacity
        if isinstance(decision, Begin):
            return BeginBurst(
                epoch=epoch, number=number, step=self.plan.burst_start(self.ledger.step), reason=decision.reason,
                water_level=level, sampling_capacity=capacity,
            )  # fmt: skip
        return SwitchRole(
            epoch=epoch, number=number, cell=decision.cell, to=decision.to, reason=decision.reason, water_level=level,
            sampling_capacity=capacity,
        )  # fmt: skip

    def has_read(self, command: SwitchRole | BeginBurst) -> bool:
        """Whether this command was read back."""
        if isinstance(command, BeginBurst):
            return self.bursts.begun >= command.step
        return self.fleet.commands.get(command.cell) == command

    def _level(self) -> int:
        """w, also of executions that the water level has not read yet: it must not look low after a boundary."""
        if self.water is None:
            return self._sent
        return self.water.level + max(0, self._sent - self.water.dispatched)

    def _unpublished(self) -> bool:
        return self.ledger.published is not None and self.ledger.published.version < self.ledger.step

    def _due(self) -> int:
        """Executions that the last boundary allows and that nobody has dispatched yet: soon they will be out there."""
        allowed = self.plan.dispatched_at(self.ledger.step) * self.group_size
        return max(0, allowed - self.dispatched)

    def _dispatched(self, event: Dispatched) -> None:
        """A place counts once, however many attempts are made at it."""
        if event.execution not in self._out:
            self._out.add(event.execution)
            self._sent += 1
        if event.evaluation is not None:
            self.backlog.see(event)
            return
        known = self._places.get(event.group_number, 0)
        self._places[event.group_number] = known | 1 << event.index
        self.dispatched += not known >> event.index & 1

"""What the scheduler has read, folded: roles, demand, its own standing. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

from gyre_engine.events import Recorded
from gyre_engine.events.cells import CellRole, WaterLevelChanged
from gyre_engine.events.executions import Dispatched
from gyre_engine.events.training import GroupAdmitted
from gyre_engine.scheduling.cells import CellState, Fleet, observe
from gyre_engine.scheduling.classes import ClassPlan, next_groups
from gyre_engine.scheduling.elastic import Cell, Cluster, Demand
from gyre_engine.training.backlog import Backlog
from gyre_engine.training.ledger import Ledger, apply, consumed

TOPICS = ("executions", "water-level", "cells", "commands", "trajectories", "training")


@dataclass(slots=True)
class View:
    """The scheduler's state: the cells, the groups that are not consumed, and two numbers a group of the run."""

    plan: ClassPlan
    group_size: int
    fleet: Fleet = field(default_factory=Fleet)
    water: WaterLevelChanged | None = None
    ledger: Ledger = field(default_factory=Ledger)
    backlog: Backlog = field(default_factory=Backlog)
    dispatched: int = 0
    """Places of training groups that were dispatched."""
    _places: dict[int, int] = field(default_factory=dict)
    """Number of a training group -> the same, a bit each."""

    def see(self, record: Recorded) -> None:
        """Take one record into account."""
        match record.event:
            case WaterLevelChanged() as event:
                self.water = event
            case GroupAdmitted() as event:
                self.backlog.see(event)
            case Dispatched(evaluation=None) as event:
                self._dispatched(event)
            case _ if record.topic == "training":
                self._ledger(record)
            case event:
                self.fleet = observe(self.fleet, event)

    def _ledger(self, record: Recorded) -> None:
        before = self.ledger
        self.ledger = apply(before, record.event)
        self.backlog.consume(consumed(before, self.ledger))

    def cluster(self) -> Cluster:
        """The cells in their fixed order; one that is away, or whose command is not carried out yet, is switching."""
        states = self.fleet.ordered
        capacity = max((state.capacity for state in states), default=1)
        return Cluster(tuple(Cell(state.cell, state.position, self._role(state)) for state in states), capacity)

    def _role(self, state: CellState) -> CellRole:
        waits = not state.healthy or self.fleet.due(state.cell) is not None
        return CellRole.SWITCHING if waits else state.role

    def demand(self) -> Demand:
        """What is out there and what could be trained now."""
        step, open_step = self.ledger.step, self.ledger.open
        over = step >= self.plan.steps
        return Demand(
            water_level=self.water.level if self.water else 0,
            to_dispatch=self._due(),
            batch_ready=not over and next_groups(self.backlog.admitted, self.backlog.consumed, self.plan) is not None,
            step_open=open_step is not None,
            free_micro_steps=len(open_step.free) if open_step else 0,
            burst_open=not over and step % self.plan.mu != 0,
        )

    def _due(self) -> int:
        """Executions that the last boundary allows and that nobody has dispatched yet: soon they will be out there."""
        allowed = self.plan.dispatched_at(self.ledger.step) * self.group_size
        return max(0, allowed - self.dispatched)

    def _dispatched(self, event: Dispatched) -> None:
        """A place counts once, however many attempts are made at it."""
        known = self._places.get(event.group_number, 0)
        self._places[event.group_number] = known | 1 << event.index
        self.dispatched += not known >> event.index & 1

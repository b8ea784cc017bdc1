"""What the scheduler has read, folded: roles, demand, its own standing. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

from gyre_engine.events import Recorded
from gyre_engine.events.cells import (
    CellHealth,
    CellRole,
    CellStarted,
    RoleChanged,
    SchedulerElected,
    SwitchRole,
    WaterLevelChanged,
)
from gyre_engine.events.executions import Dispatched
from gyre_engine.events.training import GroupAdmitted
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
    cells: dict[str, Cell] = field(default_factory=dict)
    capacity: int = 1
    incarnations: dict[str, str] = field(default_factory=dict)
    sick: set[str] = field(default_factory=set)
    """Cells whose engine is away: they serve nobody."""
    commanded: dict[str, SwitchRole] = field(default_factory=dict)
    epoch: int = 0
    holder: str = ""
    number: int = 0
    water: WaterLevelChanged | None = None
    ledger: Ledger = field(default_factory=Ledger)
    backlog: Backlog = field(default_factory=Backlog)
    places: dict[int, int] = field(default_factory=dict)
    """Number of a training group -> its places that were dispatched, a bit each."""

    def see(self, record: Recorded) -> None:
        """Take one record into account."""
        match record.event:
            case WaterLevelChanged() as event:
                self.water = event
            case CellStarted() as event:
                self.cells[event.cell] = Cell(event.cell, event.position, event.role)
                self.capacity = event.capacity
                self.incarnations[event.cell] = event.incarnation
                self.sick.discard(event.cell)
            case CellHealth() as event if event.incarnation == self.incarnations.get(event.cell):
                (self.sick.discard if event.healthy else self.sick.add)(event.cell)
            case RoleChanged() as event if event.cell in self.cells:
                self.cells[event.cell] = Cell(event.cell, self.cells[event.cell].position, event.role)
            case SchedulerElected() as event if event.epoch > self.epoch:
                self.epoch, self.holder = event.epoch, event.holder
            case SwitchRole() as event if event.epoch >= self.epoch:
                self.commanded[event.cell] = event
                self.number = max(self.number, event.number)
            case GroupAdmitted() as event:
                self.backlog.see(event)
            case Dispatched(evaluation=None) as event:
                self.places[event.group_number] = self.places.get(event.group_number, 0) | 1 << event.index
            case _ if record.topic == "training":
                self._ledger(record)

    def _ledger(self, record: Recorded) -> None:
        before = self.ledger
        self.ledger = apply(before, record.event)
        self.backlog.consume(consumed(before, self.ledger))

    def cluster(self) -> Cluster:
        """The cells in their fixed order; one that is away, or whose command is not carried out yet, is switching."""
        return Cluster(tuple(sorted((self._cell(c) for c in self.cells.values()), key=lambda c: c.position)), self.capacity)

    def _cell(self, cell: Cell) -> Cell:
        command = self.commanded.get(cell.name)
        if cell.name in self.sick or (command is not None and command.to is not cell.role):
            return Cell(cell.name, cell.position, CellRole.SWITCHING)
        return cell

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
        return max(0, allowed - sum(places.bit_count() for places in self.places.values()))

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
from gyre_engine.events.training import GroupAdmitted, StepCommitted
from gyre_engine.scheduling.classes import ClassPlan, next_groups
from gyre_engine.scheduling.elastic import Cell, Cluster, Demand
from gyre_engine.training.backlog import Backlog
from gyre_engine.training.ledger import Ledger, apply

TOPICS = ("water-level", "cells", "commands", "trajectories", "training")


@dataclass(slots=True)
class View:
    """The scheduler's state; bounded by the number of cells and of groups not yet consumed."""

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
    dispatched_at_commit: int = 0

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
            case _ if record.topic == "training":
                self._ledger(record)

    def _ledger(self, record: Recorded) -> None:
        before = self.ledger
        self.ledger = apply(before, record.event)
        if isinstance(record.event, StepCommitted) and self.ledger.committed is record.event and before.open is not None:
            self.backlog.consume(before.open.opened.groups)
            self.dispatched_at_commit = self.water.dispatched if self.water else 0

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
        """Executions that the last commit allows and that the water level does not show yet."""
        step = self.ledger.step
        if step == 0:
            return 0
        allowed = (self.plan.dispatched_at(step) - self.plan.dispatched_at(step - 1)) * self.group_size
        seen = (self.water.dispatched if self.water else 0) - self.dispatched_at_commit
        return max(0, allowed - max(0, seen))

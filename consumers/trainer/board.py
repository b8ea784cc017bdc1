"""What a trainer has read: the ledger's fold, its cell's role, the micro-steps, and (core) what is to be trained on.

Pure bookkeeping: `see` takes one record after the other, in the log's order a topic.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from gyre_engine.batching import PackedMicroStep
from gyre_engine.batching.step_inputs import packed
from gyre_engine.events import Recorded
from gyre_engine.events.bursts import BeginBurst
from gyre_engine.events.cells import CellRole, CellStarted, LifeChanged, RoleChanged, SchedulerElected, SwitchRole
from gyre_engine.events.executions import Dispatched
from gyre_engine.events.training import (
    Claimed,
    MemberJoined,
    MicroStep,
    Published,
    Sealed,
    StepCommitted,
    StepRefused,
)
from gyre_engine.scheduling import bursts
from gyre_engine.scheduling.bursts import Bursts
from gyre_engine.scheduling.cells import Fleet, observe
from gyre_engine.training.backlog import Backlog
from gyre_engine.training.ledger.fold import Ledger, apply, concluded, consumed

LEDGER_TOPICS = ("training", "micro-steps", "cells")
CORE_TOPICS = (*LEDGER_TOPICS, "commands", "trajectories", "executions", "model-calls")


@dataclass(slots=True)
class Board:
    """Everything that a trainer knows, from the log alone, whichever topic is read first."""

    cell: str
    ledger: Ledger = field(default_factory=Ledger)
    fleet: Fleet = field(default_factory=Fleet)
    bursts: Bursts = field(default_factory=Bursts)
    """The core's alone: which burst the scheduler let begin."""
    packs: dict[str, PackedMicroStep] = field(default_factory=dict)
    """Micro-steps of steps that are not committed yet."""
    published: dict[int, Published] = field(default_factory=dict)
    position: int = -1
    """Offset of the last ledger event read."""
    backlog: Backlog = field(default_factory=Backlog)
    progress: dict[str, int] = field(default_factory=dict)
    """Ledger events seen a cell: what a lease watches."""
    dispatched: int = 0
    """Groups of training dispatched so far, the core's alone; `drawn`: tasks drawn for them."""
    drawn: int = 0
    void: set[tuple[int, str]] = field(default_factory=set)
    """Commits that the ledger did not take, of cores that were deposed: offset, and hash of the weights."""
    refused: list[StepRefused] = field(default_factory=list)
    """Of the step that is open or comes next."""
    _steps: dict[str, int] = field(default_factory=dict)

    @property
    def role(self) -> CellRole:
        """Of this trainer's cell; every cell samples until it says otherwise."""
        state = self.fleet.cells.get(self.cell)
        return state.role if state else CellRole.SAMPLING

    def see(self, record: Recorded) -> None:
        """Take one record into account."""
        self.backlog.see(record.event)
        match record.event:
            case MicroStep() as event if event.step > self.ledger.step:
                self.packs[event.micro_step], self._steps[event.micro_step] = packed(event), event.step
            case RoleChanged() | LifeChanged() | CellStarted() as event:
                self.fleet = observe(self.fleet, event)
            case SchedulerElected() | SwitchRole() | BeginBurst() as event:
                self.bursts = bursts.observe(self.bursts, event)
            case Dispatched(evaluation=None) as event:
                self.dispatched = max(self.dispatched, event.group_number + 1)
                self.drawn = max(self.drawn, event.draw + 1)
            case _ if record.topic == "training":
                self.position = record.offset
                self._ledger(record)

    def _ledger(self, record: Recorded) -> None:
        event, before = record.event, self.ledger
        self.ledger = apply(before, event)
        match event:
            case Claimed() | Sealed() | MemberJoined():
                self.progress[event.cell] = self.progress.get(event.cell, 0) + 1
            case StepCommitted() if concluded(before, self.ledger):
                self._committed(event.step, consumed(before, self.ledger))
            case StepCommitted():
                self.void.add((record.offset, event.weights_hash))
            case StepRefused() if event.core_epoch == self.ledger.core_epoch and event.step == self.ledger.step + 1:
                self.refused.append(event)
            case Published() if event.core_epoch == self.ledger.core_epoch:
                self.published = {v: p for v, p in self.published.items() if v > event.version - 2}
                self.published[event.version] = event

    def _committed(self, step: int, groups: tuple[str, ...]) -> None:
        self.backlog.consume(groups)
        self.refused.clear()
        self._steps = {name: of for name, of in self._steps.items() if of > step}
        self.packs = {name: pack for name, pack in self.packs.items() if name in self._steps}

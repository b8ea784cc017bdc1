"""What a trainer has read: the ledger's fold, its cell's role, the micro-steps, and (core) what is to be trained on.

Pure bookkeeping: `see` takes one record after the other, in the log's order a topic.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from gyre_engine.batching import PackedMicroStep
from gyre_engine.batching.step_inputs import packed
from gyre_engine.events import Recorded
from gyre_engine.events.calls import ModelCall, ProxyOwns
from gyre_engine.events.cells import CellRole, CellStarted, RoleChanged
from gyre_engine.events.executions import Discarded, Dispatched
from gyre_engine.events.training import (
    Claimed,
    EvaluationReported,
    GroupAdmitted,
    MemberJoined,
    MicroStep,
    Published,
    Sealed,
    StepCommitted,
)
from gyre_engine.training.ledger import Ledger, apply

LEDGER_TOPICS = ("training", "micro-steps", "cells")
CORE_TOPICS = (*LEDGER_TOPICS, "trajectories", "executions", "model-calls")


@dataclass(slots=True)
class Calls:
    """Model calls of the executions that may still be trained on. State: the deltas of executions not yet trained."""

    by_execution: dict[str, list[ModelCall]] = field(default_factory=dict)
    epochs: dict[str, int] = field(default_factory=dict)
    ignored: set[str] = field(default_factory=set)

    def see(self, event: ModelCall) -> None:
        """Keep the call, unless a successor owns the execution (log-rules, 9) or it never trains."""
        if event.execution in self.ignored or event.owner_epoch < self.epochs.get(event.execution, 0):
            return
        known = self.by_execution.setdefault(event.execution, [])
        if all(call.call != event.call for call in known[-4:]):
            known.append(event)

    def ignore(self, execution: str) -> None:
        self.ignored.add(execution)
        self.forget([execution])

    def forget(self, executions: Iterable[str]) -> None:
        for execution in executions:
            self.by_execution.pop(execution, None)
            self.epochs.pop(execution, None)


@dataclass(slots=True)
class Board:
    """Everything that a trainer knows, from the log alone."""

    cell: str
    ledger: Ledger = field(default_factory=Ledger)
    role: CellRole = CellRole.SAMPLING
    packs: dict[str, PackedMicroStep] = field(default_factory=dict)
    published: dict[int, Published] = field(default_factory=dict)
    position: int = -1
    """Offset of the last ledger event read."""
    admitted: list[GroupAdmitted] = field(default_factory=list)
    consumed: set[str] = field(default_factory=set)
    calls: Calls = field(default_factory=Calls)
    evaluations: set[str] = field(default_factory=set)
    """Evaluations that were dispatched and are not reported yet: they are pinned to the published version."""
    progress: dict[str, int] = field(default_factory=dict)
    """Ledger events seen a cell: what a lease watches."""

    def see(self, record: Recorded) -> None:
        """Take one record into account."""
        match record.event:
            case MicroStep() as event:
                self.packs[event.micro_step] = packed(event)
            case RoleChanged(cell=self.cell, role=role) | CellStarted(cell=self.cell, role=role):
                self.role = role
            case GroupAdmitted() as event:
                self.admitted.append(event)
            case Dispatched(evaluation=str() as evaluation, execution=execution):
                self.evaluations.add(evaluation)
                self.calls.ignore(execution)
            case Discarded(execution=execution):
                self.calls.ignore(execution)
            case ProxyOwns() as event:
                self.calls.epochs[event.execution] = max(event.owner_epoch, self.calls.epochs.get(event.execution, 0))
            case ModelCall() as event:
                self.calls.see(event)
            case _ if record.topic == "training":
                self.position = record.offset
                self._ledger(record)

    def _ledger(self, record: Recorded) -> None:
        event, before = record.event, self.ledger
        self.ledger = apply(before, event)
        match event:
            case Claimed() | Sealed() | MemberJoined():
                self.progress[event.cell] = self.progress.get(event.cell, 0) + 1
            case StepCommitted() if self.ledger.committed is event and before.open is not None:
                self._committed(before.open.opened.groups)
            case EvaluationReported():
                self.evaluations.discard(event.evaluation)
            case Published() if event.core_epoch == self.ledger.core_epoch:
                self.published = {v: p for v, p in self.published.items() if v > event.version - 2}
                self.published[event.version] = event

    def _committed(self, groups: tuple[str, ...]) -> None:
        self.consumed |= set(groups)
        self.packs.clear()
        done = [g for g in self.admitted if g.group in self.consumed]
        self.calls.forget(e.execution for g in done for e in g.executions)

"""The state of a run as a person wants to see it: a pure fold."""

from __future__ import annotations

from dataclasses import dataclass, field

from consumers.dashboard.sampled import Sampled
from consumers.dashboard.time_outs import TimeOuts
from gyre_engine.events import Event
from gyre_engine.events.calls import ExecutionClosed, ModelCall, ProxyOwns
from gyre_engine.events.cells import CellRole, ProbeGap, RoleChanged, WaterLevelChanged
from gyre_engine.events.executions import Discarded, Dispatched, Ending, Finished
from gyre_engine.events.training import EvaluationReported, StepCommitted, Waiting
from gyre_engine.scheduling.cells import Fleet, observe

TOPICS = ("executions", "model-calls", "cells", "commands", "water-level", "training")


@dataclass(slots=True)
class RunView:
    """Everything that the display and the final table show."""

    steps: int
    fleet: Fleet = field(default_factory=Fleet)
    water: WaterLevelChanged | None = None
    committed: list[StepCommitted] = field(default_factory=list)
    evaluations: list[EvaluationReported] = field(default_factory=list)
    dispatched: int = 0
    finished: int = 0
    discarded: int = 0
    tried_again: int = 0
    """Attempts that were discarded and followed by another."""
    time_outs: TimeOuts = field(default_factory=TimeOuts)
    sampled: Sampled = field(default_factory=Sampled)
    switches: int = 0
    agent_errors: int = 0
    gap_max: float = 0.0
    gap_version: int | None = None
    """The newest version whose gap was measured."""
    kept_gap_max: float = 0.0
    waiting: Waiting | None = None

    def see(self, event: Event) -> None:
        """Take one event into account."""
        match event:
            case ProbeGap():
                self._gap(event)
            case WaterLevelChanged():
                self.water = event
            case Dispatched():
                self.dispatched += 1
            case Finished():
                self.finished += 1
                self.time_outs.see(event)
                self.agent_errors += event.ending is Ending.HARNESS_CRASHED
            case Discarded():
                self.discarded += event.final
                self.tried_again += not event.final
                self.time_outs.see(event)
            case ModelCall() | ProxyOwns():
                self.sampled.see(event)
            case ExecutionClosed():
                self.agent_errors += event.errors
            case StepCommitted():
                self.committed.append(event)
                self.waiting = None
            case EvaluationReported():
                self.evaluations.append(event)
            case Waiting():
                self.waiting = event
            case _:
                self.fleet = observe(self.fleet, event)
                self.switches += isinstance(event, RoleChanged) and self._is_a_switch(event)

    def _is_a_switch(self, event: RoleChanged) -> bool:
        state = self.fleet.cells.get(event.cell)
        return state is not None and state.incarnation == event.incarnation and event.role is not CellRole.LEFT

    def _gap(self, event: ProbeGap) -> None:
        if event.kept_tokens:
            self.kept_gap_max = max(self.kept_gap_max, event.gap_max)
        else:
            self.gap_max = max(self.gap_max, event.gap_max)
            self.gap_version = max(self.gap_version or 0, event.version)

    @property
    def step(self) -> int:
        return self.committed[-1].step if self.committed else 0

    @property
    def skipped(self) -> int:
        """Steps that were committed with unchanged weights, because their gradient was not finite."""
        return sum("skipped" in c.metrics for c in self.committed)

    @property
    def empty(self) -> int:
        """Steps in which no execution had anything to train on: they made no update."""
        return sum(c.executions == 0 for c in self.committed)

    @property
    def over(self) -> bool:
        """All steps are committed."""
        return self.step >= self.steps

    @property
    def trained_tokens(self) -> int:
        return int(sum(c.metrics.get("targets", 0.0) for c in self.committed))

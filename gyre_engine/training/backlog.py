"""What a core has yet to train on: admitted groups, and the model calls of their executions. A fold, in any order of topics.

State: groups that are not consumed, the names of those that are, and the calls of executions that may still be trained. What is
consumed, left out, discarded or only evaluated is forgotten, also where it is read again later.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from gyre_engine.events import Event
from gyre_engine.events.calls import ModelCall, ProxyOwns
from gyre_engine.events.executions import Discarded, Dispatched
from gyre_engine.events.training import EvaluationReported, GroupAdmitted


@dataclass(slots=True)
class Backlog:
    """`admitted`: groups in the order of their admission; `calls`: by execution, in the order of the log."""

    waiting: dict[str, GroupAdmitted] = field(default_factory=dict)
    consumed: dict[str, int] = field(default_factory=dict)
    """Group -> its number; -1 until its admission was read."""
    calls: dict[str, list[ModelCall]] = field(default_factory=dict)
    reported: set[str] = field(default_factory=set)
    evaluations: set[str] = field(default_factory=set)
    """Evaluations that were dispatched and are not reported yet: they are pinned to the published version."""
    _epochs: dict[str, int] = field(default_factory=dict)
    _over: set[str] = field(default_factory=set)

    @property
    def admitted(self) -> list[GroupAdmitted]:
        """Groups that no committed step has consumed, in the order of their admission."""
        return list(self.waiting.values())

    def see(self, event: Event) -> None:
        """Take one event into account."""
        match event:
            case GroupAdmitted():
                self._admit(event)
            case Dispatched(evaluation=str() as evaluation, execution=execution):
                self._forget([execution])
                if evaluation not in self.reported:
                    self.evaluations.add(evaluation)
            case EvaluationReported():
                self.reported.add(event.evaluation)
                self.evaluations.discard(event.evaluation)
            case Discarded(execution=execution):
                self._forget([execution])
            case ProxyOwns() if event.execution not in self._over:
                self._epochs[event.execution] = max(event.owner_epoch, self._epochs.get(event.execution, 0))
            case ModelCall() if event.execution not in self._over:
                # Later records of a lower epoch are a deposed proxy's (log-rules, 9).
                if event.owner_epoch >= self._epochs.get(event.execution, 0):
                    self.calls.setdefault(event.execution, []).append(event)
            case _:
                pass

    def consume(self, groups: Iterable[str]) -> None:
        """A committed step has trained on these groups."""
        for name in groups:
            group = self.waiting.pop(name, None)
            self.consumed[name] = group.group_number if group else self.consumed.get(name, -1)
            if group is not None:
                self._forget(e.execution for e in group.executions)

    def _admit(self, event: GroupAdmitted) -> None:
        self._forget(left.what for left in event.left_out)
        if event.group in self.consumed:
            self.consumed[event.group] = event.group_number
            self._forget(e.execution for e in event.executions)
        else:
            self.waiting.setdefault(event.group, event)

    def _forget(self, executions: Iterable[str]) -> None:
        for execution in executions:
            self._over.add(execution)
            self.calls.pop(execution, None)
            self._epochs.pop(execution, None)

"""What a core has yet to train on: admitted groups, and the model calls of their executions. A fold, in any order of topics.

State: groups that are not consumed, and the calls of executions that may still be trained. What is consumed, left out, discarded, only
evaluated or admitted without anything to train is forgotten at once, also where it is read again later. As its calls may still stand
unread on another topic, its name stays: of executions for as long as their group is not consumed, then that of the group alone. So the
state is bounded by what is dispatched and not trained yet, but for some 200 bytes a group that is over: 0.13 GB after 10,000 steps of
64 groups.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from gyre_engine.batching.step_inputs import trained
from gyre_engine.events import Event
from gyre_engine.events.calls import ExecutionClosed, ModelCall, ProxyOwns
from gyre_engine.events.executions import Discarded, Dispatched
from gyre_engine.events.training import EvaluationReported, GroupAdmitted
from gyre_engine.trees.owned import OwnedCalls


@dataclass(slots=True)
class Backlog:
    """`admitted`: groups in the order of their admission; `calls`: of the executions that may still be trained."""

    waiting: dict[str, GroupAdmitted] = field(default_factory=dict)
    consumed: set[str] = field(default_factory=set)
    numbers: set[int] = field(default_factory=set)
    """Of all groups whose admission was read, the consumed ones among them."""
    calls: OwnedCalls = field(default_factory=OwnedCalls)
    reported: set[str] = field(default_factory=set)
    evaluations: set[str] = field(default_factory=set)
    """Evaluations that were dispatched and are not reported yet: they are pinned to the published version."""
    _evaluated: set[str] = field(default_factory=set)
    """Groups of evaluations."""
    _over: dict[str, set[str]] = field(default_factory=dict)
    """By group that is neither consumed nor evaluated: its executions whose calls are not wanted any more."""

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
                self._evaluated.add(_group_of(execution))
                self._forget([execution])
                if evaluation not in self.reported:
                    self.evaluations.add(evaluation)
            case EvaluationReported():
                self.reported.add(event.evaluation)
                self.evaluations.discard(event.evaluation)
            case Discarded(execution=execution):
                self._forget([execution])
            case ProxyOwns() | ModelCall() | ExecutionClosed() if self._wants(event.execution):
                self.calls.see(event)
            case _:
                pass

    def consume(self, groups: Iterable[str]) -> None:
        """A committed step has trained on these groups."""
        for name in groups:
            group = self.waiting.pop(name, None)
            self.consumed.add(name)
            self._over.pop(name, None)
            if group is not None:
                self._forget(e.execution for e in group.executions)

    def _admit(self, event: GroupAdmitted) -> None:
        self.numbers.add(event.group_number)
        self._forget(left.what for left in event.left_out)
        if event.group in self.consumed:
            self._forget(e.execution for e in event.executions)
        else:
            self.waiting.setdefault(event.group, event)
            wanted = {e.execution for e in trained([event])}
            self._forget(e.execution for e in event.executions if e.execution not in wanted)

    def _forget(self, executions: Iterable[str]) -> None:
        for execution in executions:
            if self._wants(execution):
                self._over.setdefault(_group_of(execution), set()).add(execution)
            self.calls.forget(execution)

    def _wants(self, execution: str) -> bool:
        """Whether its calls may still be trained."""
        group = _group_of(execution)
        return group not in self.consumed and group not in self._evaluated and execution not in self._over.get(group, ())


def _group_of(execution: str) -> str:
    return execution.rsplit(".", 2)[0]

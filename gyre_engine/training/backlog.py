"""What a core has yet to train on: admitted groups, and the model calls of their executions. A fold, in any order of topics.

State: groups that are not consumed, and the calls of executions that may still be trained: before the decision on a group those of all
its attempts but the discarded ones, then those of what the decision trains. What is consumed, discarded, not trained or only evaluated
is forgotten at once, also where it is read again later, and where the decision never heard of it. As its calls may still stand unread
on another topic, its name stays: of executions until their group is decided, then that of the group alone. So the state is bounded by
what is dispatched and not trained yet, but for some 200 bytes a group that is over: 0.13 GB after 10,000 steps of 64 groups.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from gyre_engine.batching.step_inputs import trained
from gyre_engine.events import Event
from gyre_engine.events.calls import ExecutionClosed, ModelCall, ProxyOwns
from gyre_engine.events.executions import Discarded, Dispatched, Finished
from gyre_engine.events.training import EvaluationReported, GroupAdmitted
from gyre_engine.trees.owned import OwnedCalls


@dataclass(slots=True)
class Backlog:
    """`waiting`: groups in the order of their admission; `calls`: of the executions that may still be trained."""

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
    _ended: dict[str, dict[str, bool]] = field(default_factory=dict)
    """By group that is not decided: its executions that have ended, and whether they may be trained by their first end."""
    _trained: dict[str, frozenset[str]] = field(default_factory=dict)
    """By group that waits: the executions that its decision trains."""
    _held: dict[str, set[str]] = field(default_factory=dict)
    """By group: the executions of which something is held."""

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
                self._close(_group_of(execution), self._evaluated)
                if evaluation not in self.reported:
                    self.evaluations.add(evaluation)
            case EvaluationReported():
                self.reported.add(event.evaluation)
                self.evaluations.discard(event.evaluation)
            case Finished() | Discarded():
                self._end(event)
            case ProxyOwns() | ModelCall() | ExecutionClosed() if self._wants(event.execution):
                self._held.setdefault(_group_of(event.execution), set()).add(event.execution)
                self.calls.see(event)
            case _:
                pass

    def consume(self, groups: Iterable[str]) -> None:
        """A committed step has trained on these groups."""
        for name in groups:
            self.waiting.pop(name, None)
            self._close(name, self.consumed)

    def _admit(self, event: GroupAdmitted) -> None:
        self.numbers.add(event.group_number)
        if event.group not in self.consumed and event.group not in self.waiting:
            self.waiting[event.group] = event
            self._trained[event.group] = frozenset(e.execution for e in trained([event]))
            self._settle(event.group)

    def _end(self, event: Finished | Discarded) -> None:
        """The first end is the end, as in admission: what has finished may be trained, whatever is logged behind it."""
        group = _group_of(event.execution)
        if group not in self._trained and group not in self.consumed and group not in self._evaluated:
            self._ended.setdefault(group, {}).setdefault(event.execution, isinstance(event, Finished))
            self._drop_unwanted(group)

    def _close(self, group: str, over: set[str]) -> None:
        """Nothing of it is wanted any more."""
        over.add(group)
        self._trained.pop(group, None)
        self._settle(group)

    def _settle(self, group: str) -> None:
        self._ended.pop(group, None)
        self._drop_unwanted(group)

    def _drop_unwanted(self, group: str) -> None:
        held = self._held.get(group, set())
        for execution in [e for e in held if not self._wants(e)]:
            held.discard(execution)
            self.calls.forget(execution)
        if not held:
            self._held.pop(group, None)

    def _wants(self, execution: str) -> bool:
        """Whether its calls may still be trained."""
        group = _group_of(execution)
        if group in self.consumed or group in self._evaluated:
            return False
        decided = self._trained.get(group)
        return self._ended.get(group, {}).get(execution, True) if decided is None else execution in decided


def _group_of(execution: str) -> str:
    return execution.rsplit(".", 2)[0]

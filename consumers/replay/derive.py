"""Decisions and micro-steps derived a second time from the model calls, the scores and the executions on the log.

reads     trajectories, executions, scores, model-calls
promises  of the log's own decisions it takes unproved only what their order chose: which groups a step took, and of a group which
          attempts and which of their scores counted, what is said of those left out (`left_out`: reasons, tokens) and the lowest
          version at which an attempt was dispatched (`dispatched_version`); what else differs in a byte raises ReplayDiverged
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Self

from gyre_engine.admission import AdmissionSettings, Evidence, decide_again
from gyre_engine.batching.step_inputs import Packing, ReferenceScorer, step_inputs, trained
from gyre_engine.events import CodecError, decode
from gyre_engine.events.calls import TreeClosed
from gyre_engine.events.codec import pack, to_fields
from gyre_engine.events.executions import Dispatched, Finished, Scored
from gyre_engine.events.training import GroupAdmitted, MicroStep
from gyre_engine.log import Log
from gyre_engine.log.port import Raw
from gyre_engine.training.ledger.history import CommittedStep
from gyre_engine.training.ledger.merge import ReplayDiverged
from gyre_engine.trees import facts
from gyre_engine.trees.forest import Forest
from gyre_engine.trees.owned import OwnedCalls

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class Sources:
    """What the admitted executions of a run left on the log. Memory: the calls of those that train; of the others counts."""

    groups: dict[str, GroupAdmitted] = field(default_factory=dict)
    calls: OwnedCalls = field(default_factory=OwnedCalls)
    forest: Forest = field(default_factory=Forest)
    trees: dict[str, TreeClosed] = field(default_factory=dict)
    dispatched: dict[str, Dispatched] = field(default_factory=dict)
    ended: dict[str, Finished] = field(default_factory=dict)
    scores: dict[str, Scored] = field(default_factory=dict)
    """By the event's id: which score counted is the log's word."""

    @classmethod
    def read(cls, log: Log) -> Self:
        """Read trajectories, then what they were derived from."""
        found = cls()
        events = (r.event for r in log.read("trajectories"))
        found.groups = {e.group: e for e in events if isinstance(e, GroupAdmitted)}
        admitted = [e for g in found.groups.values() for e in g.executions]
        found._executions(log, {e.execution for e in admitted}, {left.what for g in found.groups.values() for left in g.left_out})
        wanted = {e.score for e in admitted}
        found.scores = {r.id: r.event for r in log.read("scores") if r.id in wanted and isinstance(r.event, Scored)}
        found.read_calls(log, {e.execution for e in admitted}, {e.execution for e in trained(list(found.groups.values()))})
        return found

    def _executions(self, log: Log, wanted: set[str], left_out: set[str]) -> None:
        """Of those left out the dispatches alone."""
        for event in (r.event for r in log.read("executions")):
            if isinstance(event, Dispatched) and (event.execution in wanted or event.execution in left_out):
                self.dispatched.setdefault(event.execution, event)
            elif isinstance(event, Finished) and event.execution in wanted:
                self.ended.setdefault(event.execution, event)

    def read_calls(self, log: Log, executions: Set[str], whole: Set[str]) -> int:
        """Grow the trees of `executions` again; of those in `whole` keep the calls, tokens and all. How many records that were."""
        keys, decoded = {name.encode() for name in executions}, {name.encode() for name in whole}
        count = 0
        for raw in log.read_raw("model-calls"):
            if raw.key in keys:
                self._call(raw, raw.key in decoded)
                count += 1
        return count

    def _call(self, raw: Raw, whole: bool) -> None:
        """Only a record whose tokens are wanted is decoded."""
        try:
            fact = self._seen(raw) if whole else facts.of_bytes(raw.value).fact
        except CodecError as error:
            logger.warning("replay passes over %s: %s", raw.place, error)
            return
        grown = self.forest.observe(fact)
        if isinstance(grown, TreeClosed):
            self.trees[grown.execution] = grown

    def _seen(self, raw: Raw) -> facts.Fact:
        event = decode(raw.value).event
        fact = facts.of_event(event)
        self.calls.see(event)
        return fact

    def dispatch(self, group: GroupAdmitted) -> Dispatched:
        """Of any of its attempts; one may have been quarantined and not be there. Raises ReplayDiverged where the log holds none."""
        names = [e.execution for e in group.executions] + [left.what for left in group.left_out]
        for name in names:
            if name in self.dispatched:
                return self.dispatched[name]
        raise ReplayDiverged(f"group {group.group}: the log holds no dispatch of any of {', '.join(names) or 'its executions'}")

    def evidence(self, group: GroupAdmitted) -> list[Evidence]:
        """Of the executions that the group counted. Raises ReplayDiverged naming what the log does not hold."""
        found = []
        for e in group.executions:
            try:
                name = e.execution
                found.append(Evidence(self.dispatched[name], self.ended[name], self.trees[name], self.scores[e.score], e.score))
            except KeyError as missing:
                raise ReplayDiverged(
                    f"group {group.group}: the log holds no dispatch, end, closed tree or score {missing} of {e.execution}"
                ) from missing
        return found


def check_groups(names: Sequence[str], sources: Sources, settings: AdmissionSettings, step: int) -> list[GroupAdmitted]:
    """Derive the admission of these groups again: trees, roles, selection, advantages. Raises ReplayDiverged where one differs."""
    groups = []
    for name in names:
        if name not in sources.groups:
            raise ReplayDiverged(f"step {step}: group {name} was trained and was never admitted on the log")
        logged = sources.groups[name]
        evidence = sources.evidence(logged)
        derived = decide_again(logged, sources.dispatch(logged), evidence, settings)
        if pack(to_fields(derived)) != pack(to_fields(logged)):
            raise ReplayDiverged(f"step {step}: group {name} was admitted otherwise than its calls and scores give")
        groups.append(derived)
    return groups


def check_micro_steps(
    step: CommittedStep,
    groups: Sequence[GroupAdmitted],
    calls: OwnedCalls,
    logged: Mapping[str, MicroStep],
    packing: Packing,
    reference: ReferenceScorer | None = None,
) -> int:
    """Derive the step's micro-steps again; how many agree. Raises ReplayDiverged naming the first that does not."""
    number, opened = step.committed.step, step.opened.micro_steps
    derived = step_inputs(number, groups, calls, packing, reference).micro_steps
    if len(derived) != len(opened):
        raise ReplayDiverged(f"step {number}: the log opened {len(opened)} micro-steps, its calls give {len(derived)}")
    for event, name in zip(derived, opened, strict=True):
        if name not in logged:
            raise ReplayDiverged(f"step {number}: micro-step {name} is not on the log")
        if event.micro_step != name or pack(to_fields(event)) != pack(to_fields(logged[name])):
            raise ReplayDiverged(f"step {number}: micro-step {event.index} on the log is not what its model calls give")
    return len(derived)

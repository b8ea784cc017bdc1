"""Knows when a committed step can be reported, whichever topic is read first, and makes the report.

State, all of it: the open step; the committed steps that are not reported; of each decided group that no reported step has consumed
its counts, of each undecided one the node lengths of its closed trees; the newest version's gaps, one a cell; one name a group of the
run. What an event costs does not grow with the run.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from gyre_engine.events import Recorded, derived_id
from gyre_engine.events.calls import TreeClosed
from gyre_engine.events.cells import ProbeGap
from gyre_engine.events.executions import UnknownExecution, place_of
from gyre_engine.events.reports import StepReported
from gyre_engine.events.training import GroupAdmitted, MemberReleased, StepCommitted, StepOpened
from gyre_engine.reports.groups import Decision, GroupTokens, TreeCounts, group_tokens
from gyre_engine.reports.steps import StepGroups, StepToReport, step_reported
from gyre_engine.scheduling.evaluations import evaluation_of
from gyre_engine.training.ledger.fold import Ledger, apply, concluded

DERIVATION, VERSION = "step-report", 1
REREAD = ("trees", "cells")
"""Topics of which a successor reads only what a report says is still needed."""


@dataclass(frozen=True, slots=True)
class Report:
    """A report to write: its id, the event that it follows from and that event's time."""

    event: StepReported
    id: str
    cause: str
    at: int


@dataclass(slots=True)
class _Group:
    """What is known of a group that no reported step has consumed."""

    decision: Decision | None = None
    trees: dict[str, TreeCounts] = field(default_factory=dict)
    tokens: GroupTokens | None = None

    def settle(self) -> None:
        """Once decided and all its trees are there, only their counts stay."""
        if self.decision is not None and self.tokens is None:
            self.tokens = group_tokens(self.decision, self.trees)
            known = self.decision.leaves.keys()
            self.trees = {} if self.tokens else {name: tree for name, tree in self.trees.items() if name in known}


class Reports:
    """The fold over `training`, `trajectories`, `trees` and `cells` of one run, each partition in its order."""

    def __init__(self, config_hash: str = "") -> None:
        self.config_hash = config_hash
        self.reported = 0
        """The last step that the ledger holds a report of."""
        self.resume: Mapping[str, int] = {}
        """That report's word on where to begin."""
        self._ledger = Ledger()
        self._opened_at = self._released = 0
        self._told: deque[tuple[str, ...]] = deque()
        """Of reported steps whose decisions are not all read yet, first to last, their groups."""
        self._committed: deque[StepToReport] = deque()
        self._groups: dict[str, _Group] = {}
        self._over: set[str] = set()
        self._uncounted: list[Decision] = []
        self._gaps: dict[str, Recorded] = {}
        self._next: dict[tuple[str, int], int] = {}

    def see(self, record: Recorded) -> list[Report]:
        """The reports that can be made now, in the order of the steps."""
        if record.topic in REREAD:
            self._next[record.topic, record.partition] = record.offset + 1
        match record.event:
            case GroupAdmitted() as event:
                self._decide(event, record)
            case TreeClosed() as event:
                self._grow(event, record)
            case ProbeGap() as event:
                self._measure(event, record)
            case StepReported() as event:
                self._read_back(event)
            case _ if record.topic == "training":
                self._follow_ledger(record)
            case _:
                return []
        return list(self._due())

    def _follow_ledger(self, record: Recorded) -> None:
        before, event = self._ledger, record.event
        self._ledger = after = apply(before, event)
        if isinstance(event, StepOpened) and after.open is not None and after.open.opened is event:
            self._opened_at, self._released = record.at, 0
        elif isinstance(event, MemberReleased) and after.open is not before.open:
            self._released += 1
        elif isinstance(event, StepCommitted) and (step := concluded(before, after)) is not None:
            self._committed.append(
                StepToReport(
                    step.opened, self._opened_at, event, record.id, record.at, before.core_cell, step.seals, self._released
                )
            )

    def _decide(self, event: GroupAdmitted, record: Recorded) -> None:
        if event.group in self._over:
            return
        group = self._groups.setdefault(event.group, _Group())
        if group.decision is None:
            group.decision = Decision.of(event, record.id, record.offset)
            self._uncounted.append(group.decision)
            group.settle()

    def _grow(self, event: TreeClosed, record: Recorded) -> None:
        name = _training_group(event.execution)
        if name is None or name in self._over:
            return
        group = self._groups.setdefault(name, _Group())
        if group.tokens is None:
            group.trees.setdefault(event.execution, TreeCounts.of(event, record.partition, record.offset))
            group.settle()

    def _measure(self, event: ProbeGap, record: Recorded) -> None:
        """What KV of older weights does is not the engine's gap: it is told apart."""
        newest = max((gap.version for gap in self._measured()), default=-1)
        if event.version > newest and not event.kept_tokens:
            self._gaps.clear()
        if event.version >= newest and not event.kept_tokens:
            self._gaps.setdefault(event.cell, record)

    def _measured(self) -> list[ProbeGap]:
        return [r.event for _, r in sorted(self._gaps.items()) if isinstance(r.event, ProbeGap)]

    def _read_back(self, event: StepReported) -> None:
        if event.step <= self.reported:
            return
        self.reported, self.resume = event.step, event.resume
        for place, offset in event.resume.items():
            topic, _, partition = place.rpartition("/")
            self._next.setdefault((topic, int(partition)), offset)
        while self._committed and self._committed[0].opened.step <= event.step:
            self._told.append(self._committed.popleft().opened.groups)

    def _due(self) -> Iterator[Report]:
        """Reported steps come first: their decisions say what was decided by then."""
        while self._told and self._are_decided(self._told[0]):
            self._take(self._told.popleft())
        while not self._told and self._committed and self._are_counted(self._committed[0].opened.groups):
            step = self._committed.popleft()
            yield self._made(step, self._take(step.opened.groups))

    def _are_decided(self, groups: tuple[str, ...]) -> bool:
        return all(name in self._groups and self._groups[name].decision is not None for name in groups)

    def _are_counted(self, groups: tuple[str, ...]) -> bool:
        return all(name in self._groups and self._groups[name].tokens is not None for name in groups)

    def _take(self, groups: tuple[str, ...]) -> StepGroups:
        """A step's groups leave the state, and what stands on `trajectories` up to the last of them counts as decided."""
        found = [self._groups.pop(name) for name in groups]
        self._over.update(groups)
        decisions = [g.decision for g in found if g.decision is not None]
        last = max((d.offset for d in decisions), default=-1)
        decided = [d for d in self._uncounted if d.offset <= last]
        self._uncounted = [d for d in self._uncounted if d.offset > last]
        return StepGroups(decisions, [g.tokens for g in found if g.tokens is not None], decided)

    def _made(self, step: StepToReport, groups: StepGroups) -> Report:
        event = step_reported(step, groups, self._measured(), self._positions())
        gaps = tuple(sorted(record.id for record in self._gaps.values()))
        return Report(
            event, derived_id((step.id, *groups.causes, *gaps), DERIVATION, VERSION, self.config_hash), step.id, step.at
        )

    def _positions(self) -> dict[str, int]:
        """Lowest offsets that a report to come may need; what is not held any more is behind all of them."""
        needed = dict(self._next)
        held = [("cells", record.partition, record.offset) for record in self._gaps.values()]
        for group in self._groups.values():
            held += [("trees", tree.partition, tree.offset) for tree in group.trees.values()]
            held += [("trees", partition, offset) for partition, offset in (group.tokens.first if group.tokens else {}).items()]
        for topic, partition, offset in held:
            needed[topic, partition] = min(offset, needed[topic, partition])
        return {f"{topic}/{partition}": offset for (topic, partition), offset in sorted(needed.items())}


def _training_group(execution: str) -> str | None:
    """The group of an execution that may train; None for one of an evaluation, or of a name that says no group."""
    try:
        name = place_of(execution)[0]
    except UnknownExecution:
        return None
    return name if evaluation_of(name) is None else None

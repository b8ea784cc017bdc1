"""The training ledger: a pure fold over the topic `training` that decides who computes what, and what counts.

Every trainer folds the same events in the same order, so all agree without talking to each other: a claim names a count and the
fold assigns the next free micro-steps (log-rules 5); a released or replaced member's uncommitted work is free again (1); only a
sealed buffer can be merged (2); only a committed step is final, and a new core voids the open attempt (3); lower epochs are
ignored (8). Events that do not apply change nothing, nor does one that stands on the log twice: `apply` is total on every history,
and raises LedgerBroken only where a core of the ruling epoch contradicts the fold.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from gyre_engine.dead_end import DeadEnd
from gyre_engine.events import Event
from gyre_engine.events.training import (
    Claimed,
    CoreElected,
    MemberJoined,
    MemberReleased,
    Published,
    Sealed,
    StepCommitted,
    StepOpened,
)


class LedgerBroken(RuntimeError, DeadEnd):
    """The ruling core logged something that the fold cannot accept; whoever folds it must stop, and would again."""


@dataclass(frozen=True, slots=True)
class Member:
    """A cell's trainer in the open step. `assigned`: its micro-steps in the order of assignment."""

    cell: str
    epoch: int
    assigned: tuple[str, ...] = ()
    sealed: Sealed | None = None


@dataclass(frozen=True, slots=True)
class OpenStep:
    """The attempt that members work on. `order_sealed`: cells in the order of their seals."""

    opened: StepOpened
    members: Mapping[str, Member] = field(default_factory=dict)
    order_sealed: tuple[str, ...] = ()

    @property
    def free(self) -> tuple[str, ...]:
        """Micro-steps that nobody holds, in the opened order."""
        held = {m for member in self.members.values() for m in member.assigned}
        return tuple(m for m in self.opened.micro_steps if m not in held)

    @property
    def complete(self) -> bool:
        """Whether every micro-step stands in a sealed buffer."""
        sealed = {m for member in self.members.values() if member.sealed for m in member.assigned}
        return len(sealed) == len(self.opened.micro_steps)

    @property
    def seals(self) -> tuple[Sealed, ...]:
        """What members sealed, also those that hold no work."""
        return tuple(m.sealed for m in self.members.values() if m.sealed is not None)

    @property
    def merge_order(self) -> tuple[tuple[str, int], ...]:
        """(cell, member epoch) of the sealed members that hold work, in the order of their seals."""
        return tuple((c, self.members[c].epoch) for c in self.order_sealed if self.members[c].assigned)


@dataclass(frozen=True, slots=True)
class Ledger:
    """What the topic `training` says so far."""

    core_epoch: int = 0
    core_holder: str = ""
    core_cell: str = ""
    open: OpenStep | None = None
    attempts: int = 0
    """Attempts opened of the step that is open or comes next."""
    committed: StepCommitted | None = None
    published: Published | None = None
    member_floor: Mapping[str, int] = field(default_factory=dict)
    """Lowest member epoch of each cell that may still join."""

    @property
    def step(self) -> int:
        """Committed steps so far: the weight version."""
        return self.committed.step if self.committed else 0

    def member(self, cell: str, epoch: int) -> Member | None:
        """The cell's member of exactly this epoch, if it is in the open step."""
        member = self.open.members.get(cell) if self.open else None
        return member if member is not None and member.epoch == epoch else None


def concluded(before: Ledger, after: Ledger) -> OpenStep | None:
    """The step, as its members left it, that the event between these two states committed; None where it committed none."""
    return before.open if after.committed is not before.committed else None


def consumed(before: Ledger, after: Ledger) -> tuple[str, ...]:
    """The groups that the event between these two states has trained on for good; empty where it committed no step."""
    step = concluded(before, after)
    return step.opened.groups if step else ()


def fold(events: Iterable[Event], ledger: Ledger | None = None) -> Ledger:
    """`apply` over events in ledger order."""
    state = ledger or Ledger()
    for event in events:
        state = apply(state, event)
    return state


def apply(ledger: Ledger, event: Event) -> Ledger:
    """The ledger after `event`."""
    match event:
        case CoreElected():
            return _elected(ledger, event)
        case StepOpened():
            return _opened(ledger, event)
        case MemberJoined():
            return _joined(ledger, event)
        case Claimed():
            return _claimed(ledger, event)
        case Sealed():
            return _sealed(ledger, event)
        case MemberReleased():
            return _released(ledger, event)
        case StepCommitted():
            return _committed(ledger, event)
        case Published() if event.core_epoch == ledger.core_epoch:
            return replace(ledger, published=event)
        case _:
            return ledger


def _elected(ledger: Ledger, event: CoreElected) -> Ledger:
    if event.core_epoch <= ledger.core_epoch:
        return ledger
    return replace(ledger, core_epoch=event.core_epoch, core_holder=event.holder, core_cell=event.cell, open=None)


def _opened(ledger: Ledger, event: StepOpened) -> Ledger:
    repeated = (event.step, event.attempt) <= (ledger.step + 1, ledger.attempts)
    if event.core_epoch != ledger.core_epoch or repeated:
        return ledger
    if ledger.open is not None or event.step != ledger.step + 1 or event.attempt != ledger.attempts + 1:
        raise LedgerBroken(
            f"the core opened step {event.step} attempt {event.attempt} after step {ledger.step} and {ledger.attempts} attempts"
        )
    if len(set(event.micro_steps)) != len(event.micro_steps):
        raise LedgerBroken(f"step {event.step} lists a micro-step twice")
    return replace(ledger, open=OpenStep(event), attempts=event.attempt)


def _joined(ledger: Ledger, event: MemberJoined) -> Ledger:
    step = _current(ledger, event.step, event.attempt)
    if step is None or event.member_epoch < ledger.member_floor.get(event.cell, 0):
        return ledger
    if event.cell in step.order_sealed:
        # What is sealed is the core's to merge or to release; a second life waits for the next step.
        return ledger
    # A second life of an unsealed member replaces the first: its buffer is gone, its micro-steps are free again.
    step = _void(step, event.cell)
    joined = replace(step, members={**step.members, event.cell: Member(event.cell, event.member_epoch)})
    return _floor(replace(ledger, open=joined), event.cell, event.member_epoch + 1)


def _claimed(ledger: Ledger, event: Claimed) -> Ledger:
    step = _current(ledger, event.step, event.attempt)
    member = ledger.member(event.cell, event.member_epoch)
    if step is None or member is None or member.sealed:
        return ledger
    assigned = member.assigned + step.free[: max(event.count, 0)]
    return _with(ledger, step, replace(member, assigned=assigned))


def _sealed(ledger: Ledger, event: Sealed) -> Ledger:
    step = _current(ledger, event.step, event.attempt)
    member = ledger.member(event.cell, event.member_epoch)
    if step is None or member is None or member.sealed:
        return ledger
    if event.micro_steps != member.assigned[: len(event.micro_steps)]:
        return _void_member(ledger, step, event.cell)
    # What was assigned but not computed before the seal is free again.
    done = replace(member, assigned=event.micro_steps, sealed=event)
    return _with(ledger, replace(step, order_sealed=(*step.order_sealed, event.cell)), done)


def _released(ledger: Ledger, event: MemberReleased) -> Ledger:
    if event.core_epoch != ledger.core_epoch:
        return ledger
    floored = _floor(ledger, event.cell, event.member_epoch + 1)
    if ledger.open is None or ledger.member(event.cell, event.member_epoch) is None:
        return floored
    return replace(floored, open=_void(ledger.open, event.cell))


def _committed(ledger: Ledger, event: StepCommitted) -> Ledger:
    repeated = event.step <= ledger.step
    if event.core_epoch != ledger.core_epoch or repeated:
        return ledger
    step = _current(ledger, event.step, event.attempt)
    if step is None or not step.complete or event.merge_order != step.merge_order:
        raise LedgerBroken(
            f"the core committed step {event.step} attempt {event.attempt}, which the ledger does not hold complete"
        )
    return replace(ledger, committed=event, open=None, attempts=0)


def _current(ledger: Ledger, step: int, attempt: int) -> OpenStep | None:
    current = ledger.open
    if current is None or (current.opened.step, current.opened.attempt) != (step, attempt):
        return None
    return current


def _with(ledger: Ledger, step: OpenStep, member: Member) -> Ledger:
    return replace(ledger, open=replace(step, members={**step.members, member.cell: member}))


def _void(step: OpenStep, cell: str) -> OpenStep:
    members = {c: m for c, m in step.members.items() if c != cell}
    return replace(step, members=members, order_sealed=tuple(c for c in step.order_sealed if c != cell))


def _void_member(ledger: Ledger, step: OpenStep, cell: str) -> Ledger:
    return replace(ledger, open=_void(step, cell))


def _floor(ledger: Ledger, cell: str, epoch: int) -> Ledger:
    floor = max(epoch, ledger.member_floor.get(cell, 0))
    return replace(ledger, member_floor={**ledger.member_floor, cell: floor})

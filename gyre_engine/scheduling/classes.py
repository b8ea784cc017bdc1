"""The order of admission: groups dispatched at one boundary are a class; classes train in order (learning.md, 1).

Inside a class, groups train as they complete, so short executions are not preferred over the long ones of an earlier class. A class
holds a whole number of batches, so no step takes groups of two classes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from gyre_engine.events.training import GroupAdmitted


@dataclass(frozen=True, slots=True)
class ClassPlan:
    """How many groups each boundary dispatches: (phi + mu) * B at first, mu * B after every burst, `steps` * B in all."""

    batch: int
    mu: int
    phi: int
    steps: int

    def groups_of(self, class_number: int) -> range:
        """Numbers of the groups of a class; empty beyond the run's end."""
        first = (self.phi + self.mu) * self.batch
        start = 0 if class_number == 0 else first + (class_number - 1) * self.mu * self.batch
        end = first if class_number == 0 else start + self.mu * self.batch
        total = self.steps * self.batch
        return range(min(start, total), min(end, total))

    def class_of(self, group_number: int) -> int:
        """The class of a group."""
        first = (self.phi + self.mu) * self.batch
        return 0 if group_number < first else 1 + (group_number - first) // (self.mu * self.batch)

    def burst_start(self, committed_steps: int) -> int:
        """Steps committed before the burst that the next step belongs to."""
        return committed_steps // self.mu * self.mu

    def burst_end(self, committed_steps: int) -> int:
        """Steps committed once that burst is done."""
        return min(self.burst_start(committed_steps) + self.mu, self.steps)

    def for_samplers(self, version: int) -> bool:
        """Whether engines take this version: the end of a burst, or the last of the run (for the final evaluation)."""
        return version % self.mu == 0 or version >= self.steps

    def dispatched_at(self, committed_steps: int) -> int:
        """Groups that may be dispatched once `committed_steps` are committed: the boundaries passed so far."""
        boundaries = committed_steps // self.mu
        return min((self.phi + self.mu + boundaries * self.mu) * self.batch, self.steps * self.batch)


def next_groups(
    admitted: Sequence[GroupAdmitted], consumed: Collection[str], plan: ClassPlan
) -> tuple[GroupAdmitted, ...] | None:
    """The groups of the next step, in the order of their admission on the log, or None while they are not complete."""
    waiting = [g for g in admitted if g.group not in consumed]
    current = _current_class(len(consumed), plan)
    ready = [g for g in waiting if g.class_number == current]
    return tuple(ready[: plan.batch]) if len(ready) >= plan.batch else None


def ready_steps(admitted: Sequence[GroupAdmitted], consumed: int, plan: ClassPlan) -> int:
    """How many steps in a row have their groups. admitted: those that no committed step has consumed."""
    ready = Counter(group.class_number for group in admitted)
    steps = 0
    while (taken := consumed + steps * plan.batch) < plan.steps * plan.batch:
        if ready[current := _current_class(taken, plan)] < plan.batch:
            break
        ready[current] -= plan.batch
        steps += 1
    return steps


def missing_groups(known: Collection[int], consumed: int, plan: ClassPlan) -> tuple[int, ...]:
    """Numbers of the groups of the current class that have not been admitted: the stragglers.

    known: numbers of the admitted groups, the `consumed` ones among them.
    """
    return tuple(n for n in plan.groups_of(_current_class(consumed, plan)) if n not in known)


def _current_class(consumed_groups: int, plan: ClassPlan) -> int:
    # Classes are consumed whole and in order, so the count says which class is under way.
    return plan.class_of(consumed_groups)

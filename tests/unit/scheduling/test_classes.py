"""Classes train in order, groups inside a class as they complete; staleness never exceeds phi + mu - 1 (learning.md, 1)."""

import random

from hypothesis import given
from hypothesis import strategies as st

from gyre_engine.events.training import GroupAdmitted
from gyre_engine.scheduling.classes import ClassPlan, missing_groups, next_groups, ready_steps


def admitted(number: int, plan: ClassPlan, version: int = 0) -> GroupAdmitted:
    return GroupAdmitted(
        group=f"g{number}", group_number=number, class_number=plan.class_of(number), query="q", dispatched_version=version,
        mean=0.5, deviation=0.5, trains=True, reason="", executions=(), left_out=(),
    )  # fmt: skip


def test_sizes_by_hand() -> None:
    """B = 2, mu = 2, phi = 1: the first boundary dispatches (1 + 2) * 2 = 6 groups, each later one 2 * 2 = 4."""
    plan = ClassPlan(batch=2, mu=2, phi=1, steps=7)
    assert [plan.groups_of(c) for c in range(4)] == [range(6), range(6, 10), range(10, 14), range(14, 14)]
    assert [plan.dispatched_at(s) for s in range(8)] == [6, 6, 10, 10, 14, 14, 14, 14]
    assert [plan.class_of(n) for n in (0, 5, 6, 9, 10)] == [0, 0, 1, 1, 2]


def test_a_later_class_waits_for_the_stragglers_of_the_earlier() -> None:
    plan = ClassPlan(batch=2, mu=1, phi=0, steps=2)
    done = [admitted(1, plan), admitted(2, plan), admitted(3, plan)]
    assert next_groups(done, (), plan) is None
    assert missing_groups({g.group_number for g in done}, 0, plan) == (0,)
    step = next_groups([*done, admitted(0, plan)], (), plan)
    assert step is not None
    assert [g.group for g in step] == ["g1", "g0"]


def test_bursts_by_hand() -> None:
    """mu = 3, 7 steps: bursts of steps 1-3, 4-6 and 7."""
    plan = ClassPlan(batch=2, mu=3, phi=1, steps=7)
    assert [plan.burst_start(s) for s in range(8)] == [0, 0, 0, 3, 3, 3, 6, 6]
    assert [plan.burst_end(s) for s in range(7)] == [3, 3, 3, 6, 6, 6, 7]


def test_ready_steps_by_hand() -> None:
    """B = 2, mu = 1, phi = 1: classes of 4, 2 and 2 groups. A class that is short of a batch holds up those behind it."""
    plan = ClassPlan(batch=2, mu=1, phi=1, steps=4)
    done = [admitted(n, plan) for n in range(8)]
    assert ready_steps(done, 0, plan) == 4
    assert ready_steps([done[0]], 0, plan) == 0
    assert ready_steps([done[0], done[3]], 0, plan) == 1
    assert ready_steps([*done[:3], *done[4:]], 0, plan) == 1
    assert ready_steps(done[4:7], 4, plan) == 1
    assert ready_steps([], 8, plan) == 0


@given(st.integers(1, 3), st.integers(1, 3), st.integers(0, 3), st.integers(1, 8), st.integers(0, 2**32))
def test_staleness_stays_below_phi_plus_mu(batch: int, mu: int, phi: int, steps: int, seed: int) -> None:
    plan, rng = ClassPlan(batch, mu, phi, steps), random.Random(seed)
    log: list[GroupAdmitted] = []
    consumed: set[str] = set()
    out: dict[int, int] = {}
    dispatched = version = 0
    while version < steps:
        while dispatched < plan.dispatched_at(version):
            # What is dispatched samples with the weights of the last publication.
            out[dispatched] = version - version % mu
            dispatched += 1
        step = next_groups(log, consumed, plan)
        if step is None:
            number = rng.choice(sorted(out))
            log.append(admitted(number, plan, out.pop(number)))
            continue
        assert all(version - g.dispatched_version <= phi + mu - 1 for g in step)
        consumed |= {g.group for g in step}
        version += 1
    assert len(consumed) == steps * batch

"""Where members' time goes, from their own clocks into the report of the step. The clock here goes on by one second a look."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from consumers.trainer import stopwatch
from consumers.trainer.stopwatch import Stopwatch
from gyre_engine.events.cells import CellRole
from gyre_engine.events.reports import MemberTime, StepReported
from gyre_engine.events.training import GroupAdmitted
from gyre_engine.reports import Reports
from tests.unit.training.test_trainers_protocol import MICRO_STEPS, Bench


@pytest.fixture
def bench(tmp_path: object, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    ticks = itertools.count()
    monkeypatch.setattr(stopwatch, "time", SimpleNamespace(monotonic=lambda: float(next(ticks))))
    made = Bench(tmp_path)
    yield made
    made.close()


def reports(bench: Bench) -> list[StepReported]:
    fold = Reports()
    return [made.event for topic in ("training", "trajectories") for r in bench.log.read(topic) for made in fold.see(r)]


def admitted(group: str) -> GroupAdmitted:
    return GroupAdmitted(
        group=group, group_number=1, class_number=0, query="q", dispatched_version=0, mean=0.0, deviation=0.0, trains=True,
        reason="", executions=(), left_out=(),
    )  # fmt: skip


def test_a_step_of_two_members_says_what_each_did_with_its_time(bench: Bench) -> None:
    """A micro-step is a second of computing, a seal one of merging; the core reads the other's gradients in one, adds and updates in
    one, exports in one. In the second step the core has published in one second, and the satellite has taken the weights in one."""
    for cell in ("c0", "c1"):
        bench.role(cell, CellRole.TRAINING)
    bench.move_core()
    for step in (1, 2):
        bench.log.append_all([admitted(f"g{step}")])
        bench.weights_hash = bench.core_board.ledger.published.weights_hash  # type: ignore[union-attr]
        bench.open_step()
        bench.until(lambda step=step: bench.committed == step, bench.satellites["c1"], bench.move_core)  # type: ignore[misc]
        bench.until(lambda step=step: step in bench.core_board.published, bench.move_core)  # type: ignore[misc]
    first, second = reports(bench)
    times = {m.cell: m for m in second.members}
    assert sum(m.micro_steps for m in second.members) == MICRO_STEPS
    assert {cell: (m.compute_s, m.merge_s, m.publish_s) for cell, m in times.items()} == {
        "c0": (float(times["c0"].micro_steps), 1.0 + 3.0, 1.0),
        "c1": (float(times["c1"].micro_steps), 1.0, 1.0),
    }
    assert times["c1"].wait_s > 0 and times["c0"].wait_s > 0
    assert {m.cell: m.publish_s for m in first.members}["c0"] == 0.0, "nothing was published by this core before its first step"


def test_time_outside_of_any_work_is_none_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looks at 0 (begin), 1-3 (work), 6-6.5 (work again), 10."""
    looks = iter([0.0, 1.0, 3.0, 6.0, 6.5, 10.0])
    monkeypatch.setattr(stopwatch, "time", SimpleNamespace(monotonic=lambda: next(looks)))
    watch = Stopwatch()
    for _ in range(2):
        with watch.during("work"):
            pass
    assert (watch.spent("work"), watch.spent("work", "rest"), watch.elapsed) == (2.5, 2.5, 10.0)


def test_work_that_fails_took_its_time_too(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = iter([0.0, 1.0, 5.0])
    monkeypatch.setattr(stopwatch, "time", SimpleNamespace(monotonic=lambda: next(looks)))
    watch = Stopwatch()
    with pytest.raises(ValueError, match="lost"), watch.during("work"):
        raise ValueError("lost")
    assert watch.spent("work") == 4.0


def test_a_core_that_computed_nothing_is_a_member_of_its_step(bench: Bench) -> None:
    bench.role("c1", CellRole.TRAINING)
    bench.move_core()
    bench.log.append_all([admitted("g1")])
    bench.open_step()
    bench.until(lambda: bench.committed == 1, bench.satellites["c1"], bench.move_core)
    (report,) = reports(bench)
    core = next(m for m in report.members if m.cell == "c0")
    assert core == MemberTime("c0", 0, 0, 0, 0.0, core.wait_s, 3.0, 0.0) and core.wait_s > 0

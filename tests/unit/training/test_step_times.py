"""Where members' time goes, from their own clocks into the report of the step. The clock here goes on by one second a look."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from consumers.trainer import core, opening, stopwatch
from consumers.trainer.recovery import Recovered, recover
from consumers.trainer.stopwatch import Stopwatch
from gyre_engine.batching.step_inputs import StepInputs, step_inputs
from gyre_engine.events import Event
from gyre_engine.events.cells import CellRole, SchedulerElected
from gyre_engine.events.reports import MemberTime, StepReported
from gyre_engine.events.training import GroupAdmitted
from gyre_engine.reports import Reports
from tests.unit.training.cast import Cast, Clock
from tests.unit.training.test_trainers_protocol import MICRO_STEPS, Bench, begin
from tests.unit.training.test_trainers_protocol import admitted as empty


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


def test_what_a_step_waited_for_before_it_opened_is_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Groups come after 7 s, the role and the burst 3 s later; to pack takes 2 s. The second step had its group at once, and waited
    4 s for its burst alone."""
    now = [0.0]
    monkeypatch.setattr(stopwatch, "time", SimpleNamespace(monotonic=lambda: now[0]))

    def packed(*of: Any) -> StepInputs:
        now[0] += 2.0
        return step_inputs(*of)

    monkeypatch.setattr(opening, "step_inputs", packed)
    bench = Bench(tmp_path)
    try:
        bench.until(lambda: bench.core_board.ledger.core_epoch == 1, bench.move_core)
        after(bench, now, 7.0, empty(0), empty(1))
        bench.role("c0", CellRole.TRAINING)
        after(bench, now, 3.0, SchedulerElected(epoch=1, holder="s"), begin(0, epoch=1))
        assert bench.committed == 1
        after(bench, now, 4.0, begin(1, epoch=1))
        first, second = reports(bench)
    finally:
        bench.close()
    assert (first.data_s, first.burst_s, first.prepare_s) == (7.0, 3.0, 2.0)
    assert (second.data_s, second.burst_s, second.prepare_s) == (0.0, 4.0, 2.0)


def test_a_recovery_is_no_wait_for_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A core takes over, recovers for 30 s, and gets its first group 7 s later."""
    now = [0.0]
    monkeypatch.setattr(stopwatch, "time", SimpleNamespace(monotonic=lambda: now[0]))

    def slow(*of: Any) -> Recovered:
        now[0] += 30.0
        return recover(*of)

    monkeypatch.setattr(core, "recover", slow)
    cast = Cast(tmp_path, Clock(), 0)
    try:
        cast.role("c0", CellRole.TRAINING)
        cast.next_core()
        after(cast, now, 7.0, empty(0), SchedulerElected(epoch=1, holder="s"), begin(0, epoch=1))
        (report,) = reports(cast)
    finally:
        cast.close()
    assert (report.data_s, report.burst_s, report.prepare_s) == (7.0, 0.0, 0.0)


def after(bench: Bench, now: list[float], seconds: float, *events: Event) -> None:
    """So much later this is logged, and the core goes on as far as it can."""
    now[0] += seconds
    bench.log.append_all(events)
    for _ in range(20):
        bench.move_core()


def test_a_wait_is_told_once_by_when_it_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """Begun at 0, past one at 3, past the other at 9."""
    looks = iter([0.0, 3.0, 9.0])
    monkeypatch.setattr(stopwatch, "time", SimpleNamespace(monotonic=lambda: next(looks)))
    watch = Stopwatch()
    for wait in ("one", "one", "other"):
        watch.passed(wait)
    assert (watch.spent("one"), watch.spent("other")) == (3.0, 6.0)


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
    idle = next(m for m in report.members if m.cell == "c0")
    assert idle == MemberTime("c0", 0, 0, 0, 0.0, idle.wait_s, 3.0, 0.0) and idle.wait_s > 0

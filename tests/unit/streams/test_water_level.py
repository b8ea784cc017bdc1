"""The water level: each execution counts once, each group once, whatever the order between topics."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from gyre_engine.events import Event
from gyre_engine.events.cells import (
    CellHealth,
    CellLost,
    CellRole,
    CellStarted,
    RoleChanged,
    SchedulerElected,
    SwitchRole,
    WaterLevelChanged,
)
from gyre_engine.events.executions import Discarded, DiscardReason, Dispatched, Ending, Finished, Started
from gyre_engine.events.training import CoreElected, GroupAdmitted, StepCommitted, StepOpened
from gyre_engine.scheduling.water_level import WaterLevel


def dispatched(name: str) -> Dispatched:
    return Dispatched(
        execution=name,
        group="g",
        index=0,
        attempt=0,
        group_size=1,
        group_number=0,
        class_number=0,
        query="q",
        source="s",
        split="train",
        harness="h",
        weight_version=0,
    )


def finished(name: str) -> Finished:
    return Finished(execution=name, ending=Ending.COMPLETED, work_url="", work_hash="", did_work=True, served_us=0, wall_us=0)


def discarded(name: str) -> Discarded:
    return Discarded(execution=name, reason=DiscardReason.LOST, final=True, wall_us=0)


def cell(name: str, position: int, role: CellRole = CellRole.SAMPLING, incarnation: str = "1") -> CellStarted:
    return CellStarted(
        cell=name,
        position=position,
        incarnation=incarnation,
        engine="native",
        engine_url="http://127.0.0.1:1",
        capacity=4,
        role=role,
        weight_version=0,
    )


def role(name: str, to: CellRole, incarnation: str = "1") -> RoleChanged:
    return RoleChanged(cell=name, incarnation=incarnation, role=to, command_epoch=1, command_number=1)


def admitted(group: str) -> GroupAdmitted:
    return GroupAdmitted(
        group=group,
        group_number=0,
        class_number=0,
        query="q",
        dispatched_version=0,
        mean=0.0,
        deviation=0.0,
        trains=True,
        reason="",
        executions=(),
        left_out=(),
    )


def opened(step: int, *groups: str, attempt: int = 1, epoch: int = 1) -> StepOpened:
    return StepOpened(
        core_epoch=epoch,
        step=step,
        attempt=attempt,
        weights_hash="h",
        groups=groups,
        scores=(),
        micro_steps=(),
        executions=0,
        divisor=1,
        staleness_max=0,
        staleness_mean=0.0,
    )


def committed(step: int, attempt: int = 1, epoch: int = 1) -> StepCommitted:
    return StepCommitted(
        core_epoch=epoch,
        step=step,
        attempt=attempt,
        merge_order=(),
        weights_hash="h",
        executions=0,
        grad_norm=0.0,
        loss=0.0,
        reward_mean=0.0,
    )


def after(*events: Event) -> WaterLevelChanged:
    level = WaterLevel()
    for event in events:
        level.observe(event)
    return level.snapshot()


def test_d_p_f_and_w_are_counted_by_hand() -> None:
    now = after(*map(dispatched, "abc"), Started(execution="a"), Started(execution="b"), finished("a"), discarded("c"))
    assert (now.dispatched, now.started, now.terminated, now.level) == (3, 2, 2, 1)


def test_the_first_end_counts_and_repetitions_do_not() -> None:
    history = [dispatched("a"), dispatched("a"), Started(execution="a"), Started(execution="a")]
    now = after(*history, discarded("a"), finished("a"), *history[2:], finished("never dispatched"))
    assert (now.dispatched, now.started, now.terminated, now.level) == (1, 1, 1, 0)


def test_capacity_is_what_healthy_sampling_cells_serve() -> None:
    cells = [cell("b", 1), cell("a", 0), cell("c", 2), role("c", CellRole.TRAINING)]
    now = after(*cells)
    assert (now.sampling_cells, now.training_cells, now.sampling_capacity, now.capacity_per_cell) == (("a", "b"), ("c",), 8, 4)
    ill = CellHealth(cell="a", incarnation="1", healthy=False, reason="silent")
    assert after(*cells, ill).sampling_capacity == 4
    assert after(*cells, CellHealth(cell="c", incarnation="1", healthy=False)).training_cells == ("c",)
    assert after(*cells, role("b", CellRole.SWITCHING)).switching_cells == ("b",)


def test_a_report_of_an_earlier_incarnation_is_ignored() -> None:
    now = after(cell("a", 0), cell("a", 0, incarnation="2"), role("a", CellRole.TRAINING, "1"))
    assert now.sampling_cells == ("a",)


def test_a_group_is_ready_until_a_committed_step_has_consumed_it() -> None:
    start = [CoreElected(core_epoch=1, holder="x", cell="a"), *map(admitted, "uvw"), opened(1, "u", "v")]
    assert after(*start).ready_groups == 3
    done = after(*start, committed(1))
    assert (done.ready_groups, done.committed_step) == (1, 1)


def test_an_attempt_that_a_new_core_voided_consumes_nothing() -> None:
    start = [CoreElected(core_epoch=1, holder="x", cell="a"), admitted("u"), opened(1, "u")]
    late = [CoreElected(core_epoch=2, holder="y", cell="a"), committed(1)]
    assert after(*start, *late).ready_groups == 1
    assert after(*start, *late, opened(1, "u", attempt=2, epoch=2), committed(1, 2, 2)).ready_groups == 0


PARTITIONS = (
    (dispatched("a"), Started(execution="a"), finished("a")),
    (dispatched("b"), discarded("b"), dispatched("c")),
    (cell("x", 0), role("x", CellRole.TRAINING), cell("x", 0, incarnation="2")),
    (admitted("u"), admitted("v")),
    (CoreElected(core_epoch=1, holder="h", cell="x"), opened(1, "u"), committed(1)),
)


@settings(deadline=None)
@given(st.permutations([n for n, events in enumerate(PARTITIONS) for _ in events]))
def test_the_level_does_not_depend_on_how_partitions_interleave(order: list[int]) -> None:
    left = [list(events) for events in PARTITIONS]
    assert after(*(left[n].pop(0) for n in order)) == after(*(event for events in PARTITIONS for event in events))


def test_who_is_lost_or_was_told_to_leave_serves_nobody() -> None:
    """As the scheduler counts: of three cells of 4 one is lost and one leaves, 4 are served."""
    level = WaterLevel()
    lost = CellLost(epoch=1, number=1, cell="b", incarnation="1", words=1, silent_us=1)
    told = SwitchRole(epoch=1, number=2, cell="c", to=CellRole.LEFT, reason="", water_level=0, sampling_capacity=0)
    for event in (SchedulerElected(epoch=1, holder="s"), cell("a", 0), cell("b", 1), cell("c", 2), lost, told):
        level.observe(event)
    assert (level.snapshot().sampling_capacity, level.snapshot().sampling_cells) == (4, ("a",))
    level.observe(CellHealth(cell="b", incarnation="1", healthy=True))
    assert level.snapshot().sampling_cells == ("a", "b"), "it has spoken again"

"""What the scheduler makes of what it reads: w that is never too low, what is due, what is ready, which burst has begun."""

import numpy as np

from consumers.scheduler.view import View
from gyre_engine.events import Event, Recorded
from gyre_engine.events.bursts import BeginBurst
from gyre_engine.events.cells import (
    CellHealth,
    CellRole,
    CellStarted,
    LeaveWanted,
    RoleChanged,
    SchedulerElected,
    SwitchRole,
    WaterLevelChanged,
)
from gyre_engine.events.executions import Dispatched
from gyre_engine.events.training import CoreElected, GroupAdmitted, Published, StepCommitted, StepOpened
from gyre_engine.scheduling.classes import ClassPlan
from gyre_engine.scheduling.cluster import Begin, Switch

PLAN = ClassPlan(batch=1, mu=2, phi=1, steps=7)
SIZE = 2


def view_of(*events: Event) -> View:
    view = View(PLAN, SIZE)
    for offset, event in enumerate(events):
        view.see(Recorded(str(offset), "r", 0, None, event, event.TOPIC, 0, offset))
    return view


def dispatched(group: int, index: int, attempt: int = 0, evaluation: str | None = None) -> Dispatched:
    return Dispatched(
        execution=f"{evaluation or ''}{group}.{index}.{attempt}", group=f"g{group}", index=index, attempt=attempt,
        group_size=SIZE, group_number=group, class_number=PLAN.class_of(group), query="q", source="s", split="train",
        harness="mini", weight_version=0, evaluation=evaluation,
    )  # fmt: skip


def water(dispatched: int, level: int) -> WaterLevelChanged:
    return WaterLevelChanged(
        dispatched=dispatched, started=dispatched, terminated=dispatched - level, level=level, capacity_per_cell=8,
        sampling_capacity=16, sampling_cells=(), training_cells=(), switching_cells=(), ready_groups=0, committed_step=0,
    )  # fmt: skip


def admitted(group: int) -> GroupAdmitted:
    return GroupAdmitted(
        group=f"g{group}", group_number=group, class_number=PLAN.class_of(group), query="q", dispatched_version=0, mean=0.0,
        deviation=1.0, trains=True, reason="", executions=(), left_out=(),
    )  # fmt: skip


def stepped(step: int) -> tuple[Event, ...]:
    opened = StepOpened(
        core_epoch=1, step=step, attempt=1, weights_hash="", groups=(f"g{step - 1}",), scores=(), micro_steps=(), executions=0,
        divisor=1, staleness_max=0, staleness_mean=0.0,
    )  # fmt: skip
    committed = StepCommitted(
        core_epoch=1, step=step, attempt=1, merge_order=(), weights_hash="", executions=0, grad_norm=0.0, loss=0.0,
        reward_mean=0.0, metrics={},
    )  # fmt: skip
    return opened, committed


def published(version: int) -> Published:
    empty = np.zeros(0, dtype=np.int32)
    return Published(
        core_epoch=1, version=version, weights_hash="", descriptor=b"", nbytes=0, probe_ids=empty,
        probe_logprobs=empty.astype(np.float32), took_us=0,
    )  # fmt: skip


CORE = CoreElected(core_epoch=1, holder="c", cell="c0")


def test_the_level_counts_what_the_water_level_has_not_read_yet() -> None:
    """Two went out before the first word; of four the water level knew two, of which one had ended: 1 + 2 are out."""
    two = (dispatched(0, 0), dispatched(0, 1))
    assert view_of(*two).demand().water_level == 2
    assert view_of(*two, dispatched(1, 0), dispatched(1, 1), water(2, 1)).demand().water_level == 3
    assert view_of(*two, dispatched(1, 0), dispatched(1, 1), water(4, 2)).demand().water_level == 2


def test_a_second_attempt_and_an_evaluation_are_out_but_take_no_place_of_what_is_due() -> None:
    """(phi + mu) * B * N = 6 executions may go out at first."""
    view = view_of(dispatched(0, 0), dispatched(0, 0, attempt=1), dispatched(0, 0, evaluation="v000-val"))
    assert (view.demand().water_level, view.demand().to_dispatch) == (3, 5)


def test_what_is_due_comes_with_the_boundary_not_with_every_step() -> None:
    all_out = [dispatched(g, i) for g in range(3) for i in range(SIZE)]
    first = (CORE, *all_out, *(admitted(g) for g in range(3)), *stepped(1))
    assert view_of(*first).demand().to_dispatch == 0
    assert view_of(*first, *stepped(2)).demand().to_dispatch == 2 * SIZE


def test_a_burst_is_ready_with_all_its_batches() -> None:
    assert not view_of(CORE).demand().batch_ready
    one, two = view_of(CORE, admitted(1)).demand(), view_of(CORE, admitted(1), admitted(0)).demand()
    assert (one.batch_ready, one.burst_ready) == (True, False)
    assert (two.batch_ready, two.burst_ready) == (True, True)
    last = view_of(CORE, *(admitted(g) for g in range(7)), *(e for s in range(1, 7) for e in stepped(s)))
    assert last.demand().burst_ready, "the last burst has one step only"


def test_a_burst_has_begun_once_it_was_let_begin_after_its_boundary() -> None:
    begin = BeginBurst(epoch=1, number=2, step=0, reason="", water_level=0, sampling_capacity=0)
    elected = SchedulerElected(epoch=1, holder="s")
    groups = [admitted(g) for g in range(4)]
    assert not view_of(CORE, elected, *groups).demand().begun
    assert view_of(CORE, elected, begin, *groups, *stepped(1)).demand().begun
    assert not view_of(CORE, elected, begin, *groups, *stepped(1), *stepped(2)).demand().begun


def test_what_is_committed_is_blocked_while_an_evaluation_is_out() -> None:
    evaluation = dispatched(0, 0, evaluation="v000-val")
    done = (CORE, published(0), admitted(0), *stepped(1))
    assert view_of(*done, evaluation).demand().blocked
    assert not view_of(*done).demand().blocked
    assert not view_of(*done, evaluation, published(1)).demand().blocked


def test_a_decision_becomes_a_command_that_says_what_it_saw_and_is_read_back() -> None:
    elected = SchedulerElected(epoch=3, holder="s")
    view = view_of(CORE, elected, dispatched(0, 0))
    first = view.command(Begin("because"), 3)
    assert isinstance(first, BeginBurst)
    assert (first.epoch, first.number, first.step, first.reason, first.water_level) == (3, 1, 0, "because", 1)
    second = view.command(Switch("c1", CellRole.TRAINING, "so"), 3)
    assert isinstance(second, SwitchRole)
    assert not view.has_read(first)
    assert not view.has_read(second)
    read = view_of(CORE, elected, first, second)
    assert read.has_read(first)
    assert read.has_read(second)
    assert read.command(Begin(""), 3).number == 2


def test_a_cell_that_was_told_to_train_before_the_burst_is_held_over() -> None:
    started = [
        CellStarted(
            cell=f"c{i}", position=i, incarnation="i", engine="scripted", engine_url="", capacity=8, role=CellRole.SAMPLING,
            weight_version=0,
        )
        for i in range(2)
    ]  # fmt: skip
    told = SwitchRole(epoch=1, number=1, cell="c1", to=CellRole.TRAINING, reason="", water_level=0, sampling_capacity=16)
    obeyed = RoleChanged(cell="c1", incarnation="i", role=CellRole.TRAINING, command_epoch=1, command_number=1)
    begin = BeginBurst(epoch=1, number=2, step=0, reason="", water_level=0, sampling_capacity=0)
    elected = SchedulerElected(epoch=1, holder="s")
    assert [c.held_over for c in view_of(*started, elected, told, begin, obeyed).cluster().cells] == [False, True]
    assert [c.held_over for c in view_of(*started, elected, begin, told, obeyed).cluster().cells] == [False, False]


def cell(name: str, position: int) -> CellStarted:
    return CellStarted(
        cell=name, position=position, incarnation="i", engine="scripted", engine_url="", capacity=8, role=CellRole.SAMPLING,
        weight_version=0,
    )  # fmt: skip


def told(name: str, to: CellRole, number: int = 1) -> SwitchRole:
    return SwitchRole(epoch=1, number=number, cell=name, to=to, reason="", water_level=0, sampling_capacity=0)


THREE = (SchedulerElected(epoch=1, holder="s"), cell("c0", 0), cell("c1", 1), cell("c2", 2))


def wanted(name: str) -> LeaveWanted:
    return LeaveWanted(cell=name, by="somebody")


def test_who_is_wanted_away_is_told_one_after_the_other_and_the_core_never() -> None:
    view = view_of(*THREE, wanted("c2"), wanted("c0"), wanted("c1"), wanted("who"))
    assert view.to_leave() == Switch("c1", CellRole.LEFT, "somebody asked for it")
    view = view_of(*THREE, wanted("c2"), wanted("c1"), told("c1", CellRole.LEFT))
    assert view.to_leave() == Switch("c2", CellRole.LEFT, "somebody asked for it")
    assert view_of(*THREE, wanted("c0")).to_leave() is None


def test_a_switch_that_is_under_way_is_waited_for_but_not_by_the_cell_itself() -> None:
    assert view_of(*THREE, wanted("c2"), told("c1", CellRole.TRAINING)).to_leave() is None
    away = CellHealth(cell="c2", incarnation="i", healthy=False)
    assert view_of(*THREE, wanted("c2"), away).to_leave() == Switch("c2", CellRole.LEFT, "somebody asked for it")


def test_a_cell_that_leaves_is_of_no_cluster_and_holds_nobody_up() -> None:
    """From the command on: C_R is that of the others, and the serial order goes on without it."""
    view = view_of(*THREE, wanted("c2"), told("c2", CellRole.LEFT))
    assert [c.name for c in view.cluster().cells] == ["c0", "c1"]
    assert (view.cluster().sampling_capacity, view.cluster().switching) == (16, False)
    gone = RoleChanged(cell="c2", incarnation="i", role=CellRole.LEFT, command_epoch=1, command_number=1)
    assert [c.name for c in view_of(*THREE, gone).cluster().cells] == ["c0", "c1"]


def test_a_cell_that_comes_later_stands_behind_the_others() -> None:
    view = view_of(*THREE, cell("far-b", 3), cell("far-a", 3))
    assert [c.name for c in view.cluster().order] == ["c0", "c1", "c2", "far-a", "far-b"]

"""A cell that never answers counts as gone after `schedule.silence_s`, and as what it says as soon as it speaks again."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from consumers.scheduler import process
from consumers.scheduler.process import Scheduler, SchedulerSettings
from gyre_engine.events import Event
from gyre_engine.events.cells import (
    CellHealth,
    CellLost,
    CellRole,
    CellStarted,
    LifeChanged,
    LifeState,
    LifeTrigger,
    RoleChanged,
    SchedulerElected,
    SwitchRole,
)
from gyre_engine.events.training import GroupAdmitted
from gyre_engine.log.memory import MemoryLog, MemoryStore
from gyre_engine.scheduling.cells import Fleet, observe
from gyre_engine.scheduling.classes import ClassPlan
from gyre_engine.scheduling.cluster import Cell, Cluster, Demand, Switch
from gyre_engine.scheduling.policies import POLICIES, PolicySettings
from gyre_engine.scheduling.silence import Silence

S, T = CellRole.SAMPLING, CellRole.TRAINING
LIMIT_S, STARTING_S = 120.0, 600.0
"""Of `schedule.silence_s` and LifeLimits.starting by default."""


def started(cell: str = "c1", incarnation: str = "1", role: CellRole = S) -> CellStarted:
    return CellStarted(
        cell=cell, position=int(cell[1:]), incarnation=incarnation, engine="native", engine_url=cell, capacity=4, role=role,
        weight_version=0,
    )  # fmt: skip


def health(cell: str = "c1", incarnation: str = "1") -> CellHealth:
    return CellHealth(cell=cell, incarnation=incarnation, healthy=True)


def lost(words: int, incarnation: str = "1", number: int = 9, epoch: int = 1) -> CellLost:
    return CellLost(epoch=epoch, number=number, cell="c1", incarnation=incarnation, words=words, silent_us=1)


def folded(*events: Event) -> Fleet:
    fleet = Fleet()
    for event in events:
        fleet = observe(fleet, event)
    return fleet


def test_a_lost_cell_serves_nobody_is_nobodys_place_and_is_back_with_its_next_word() -> None:
    there = folded(started("c0"), started(), health())
    gone = observe(there, lost(words=2))
    assert gone.lost("c1") and gone.away("c1") and not gone.serves("c1")
    assert [state.cell for state in gone.ordered] == ["c0"]
    back = observe(gone, health())
    assert not back.lost("c1") and back.serves("c1") and [state.cell for state in back.ordered] == ["c0", "c1"]


@pytest.mark.parametrize(
    "word",
    [
        started(),
        started(incarnation="2"),
        LifeChanged(cell="c1", incarnation="1", before=LifeState.SAMPLING, trigger=LifeTrigger.ENGINE_LOST, after=LifeState.LOST),
        RoleChanged(cell="c1", incarnation="1", role=S, command_epoch=1, command_number=1),
    ],
    ids=["the same incarnation again", "a new incarnation", "a change of its life", "a change of its role"],
)
def test_whatever_it_says_undoes_the_loss(word: Event) -> None:
    assert not folded(started(), health(), lost(words=2), word).lost("c1")


def test_a_dead_incarnation_that_wakes_does_not_undo_the_loss_of_the_living() -> None:
    assert folded(started(), started(incarnation="2"), lost(words=1, incarnation="2"), health(incarnation="1")).lost("c1")


def test_a_loss_of_a_deposed_scheduler_or_one_that_comes_late_counts_for_nothing() -> None:
    elected = SchedulerElected(epoch=2, holder="b")
    assert not folded(started(), elected, lost(words=1, epoch=1)).lost("c1")
    newest = lost(words=2, number=11)
    assert folded(started(), health(), newest, lost(words=1, number=9)).losses["c1"] == newest


def test_a_cell_that_never_started_is_lost_until_it_starts() -> None:
    gone = folded(lost(words=0, incarnation=""))
    assert gone.lost("c1") and not observe(gone, started()).lost("c1")


@given(st.data())
def test_whether_it_is_lost_does_not_depend_on_how_cells_and_commands_interleave(data: st.DataObject) -> None:
    """Three words were heard, then a fourth was said: it is not lost, wherever the loss is read."""
    words: list[Event] = [started(), health(), health(), health()][: data.draw(st.sampled_from([3, 4]))]
    place = data.draw(st.integers(0, len(words)))
    assert folded(*words[:place], lost(words=3), *words[place:]).lost("c1") == (len(words) == 3)


def test_silence_is_told_at_the_limit_and_once() -> None:
    silence, fleet = Silence(LIMIT_S, STARTING_S), folded(started("c0"), started("c1"))
    for second in range(0, 121, 5):
        fleet = observe(fleet, health("c0"))
        silence.listen(fleet, ("c0", "c1"), float(second))
    assert not silence.fallen(fleet)
    fleet = observe(fleet, health("c0"))
    silence.listen(fleet, ("c0", "c1"), 125.0)
    assert silence.fallen(fleet) == {"c1": 125.0}
    assert not silence.fallen(observe(fleet, lost(words=1)))


def test_a_cell_that_never_started_has_as_long_as_its_engine_may_take() -> None:
    silence, fleet, told = Silence(LIMIT_S, STARTING_S), folded(started("c0")), list[int]()
    for second in range(0, 611, 5):
        fleet = observe(fleet, health("c0"))
        silence.listen(fleet, ("c0", "c1"), float(second))
        told += [second] * ("c1" in silence.fallen(fleet))
    assert told[0] == 605


def test_where_nobody_spoke_it_was_the_log_or_the_listener_that_was_away() -> None:
    """All were silent for 200 s; c0 is read first, and c1 has its whole time again."""
    silence, fleet, told = Silence(LIMIT_S, STARTING_S), folded(started("c0"), started("c1")), list[int]()
    silence.listen(fleet, (), 10.0)
    for second in range(210, 341, 5):
        fleet = observe(fleet, health("c0"))
        silence.listen(fleet, (), float(second))
        told += [second] * ("c1" in silence.fallen(fleet))
    assert told == [335, 340]


def test_the_only_cell_is_never_lost() -> None:
    silence, fleet = Silence(LIMIT_S, STARTING_S), folded(started("c0"))
    for second in (0.0, 1_000.0, 2_000.0):
        silence.listen(fleet, ("c0",), second)
        assert not silence.fallen(fleet)


def cells(*roles: CellRole, first: int = 0) -> Cluster:
    return Cluster(tuple(Cell(f"c{n}", n, role) for n, role in enumerate(roles, first)), 4)


OPEN = Demand(water_level=6, batch_ready=True, burst_ready=True, step_open=True, begun=True)


def test_under_paper_cells_go_back_as_far_as_what_is_out_needs_them_while_the_core_is_lost() -> None:
    """6 are out, a cell serves 4: with one of two sampling 2 wait for a core that is not there; with two nobody waits."""
    paper = POLICIES["paper"]
    answer = paper(cells(S, T, first=1), OPEN, PolicySettings())
    assert isinstance(answer, Switch) and (answer.cell, answer.to) == ("c2", S)
    assert paper(cells(T, S, T), OPEN, PolicySettings()) is None
    assert paper(cells(S, S, T, first=1), OPEN, PolicySettings()) is None


def test_under_colocate_all_sample_while_the_core_is_lost_and_train_when_it_is_back() -> None:
    colocate = POLICIES["colocate"]
    answer = colocate(cells(T, T, first=1), OPEN, PolicySettings())
    assert isinstance(answer, Switch) and (answer.cell, answer.to) == ("c1", S)
    assert colocate(cells(S, S, first=1), OPEN, PolicySettings()) is None
    again = colocate(cells(T, S, S), OPEN, PolicySettings())
    assert isinstance(again, Switch) and (again.cell, again.to) == ("c1", T)


def test_under_async_nobody_takes_the_place_of_a_core_that_is_lost() -> None:
    split = POLICIES["async"]
    assert split(cells(S, S, first=1), OPEN, PolicySettings(training_cells=1)) is None


@pytest.mark.parametrize("policy", POLICIES)
def test_no_policy_breaks_where_every_cell_of_the_order_is_lost(policy: str) -> None:
    assert POLICIES[policy](Cluster((Cell("standalone-0", -1, S),), 4), OPEN, PolicySettings()) is None


class Clock:
    """Stands still unless it is told to go on."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def monotonic(self) -> float:
        return self.now


class Ruling(Scheduler):
    """A scheduler that is moved by hand."""

    def __init__(self, log: MemoryLog, cells: tuple[str, ...]) -> None:
        plan = ClassPlan(batch=1, mu=1, phi=0, steps=3)
        super().__init__(SchedulerSettings(holder="me", cells=cells, plan=plan, group_size=4), log)
        self._follower = log.follow(self.topics)
        self.move()
        self.caught_up()

    def move(self) -> None:
        assert self._follower is not None
        for record in self._follower.poll(0.0):
            self.handle(record)
        self.idle()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(process, "time", made)
    return made


def of(log: MemoryLog, kind: type[Event]) -> list[Any]:
    return [record.event for record in log.read("commands") if isinstance(record.event, kind)]


def admitted() -> GroupAdmitted:
    return GroupAdmitted(
        group="g0", group_number=0, class_number=0, query="q", dispatched_version=0, mean=0.0, deviation=1.0, trains=True,
        reason="", executions=(), left_out=(),
    )  # fmt: skip


def test_a_commanded_cell_that_never_answers_holds_nobody_up_beyond_the_limit(clock: Clock) -> None:
    """c0, the core, is told to train and dies for good; c1 and c2 go on speaking. Nothing moves until c0 is lost; when it is back its
    command is due again, and the others wait for it as for anybody."""
    log = MemoryLog(MemoryStore(), "r")
    log.append_all([*(started(f"c{n}") for n in range(3)), admitted()])
    scheduler = Ruling(log, ("c0", "c1", "c2"))
    scheduler.move()
    [told] = of(log, SwitchRole)
    assert (told.cell, told.to) == ("c0", T) and scheduler.view.cluster().switching
    while not (losses := of(log, CellLost)):
        clock.now += 5.0
        log.append_all([health("c1"), health("c2")])
        scheduler.move()
    assert [(loss.cell, loss.incarnation, loss.words) for loss in losses] == [("c0", "1", 1)]
    assert LIMIT_S < clock.now - 1_000.0 <= LIMIT_S + 10.0
    assert losses[0].number == told.number + 1 and losses[0].epoch == told.epoch
    scheduler.move()
    cluster = scheduler.view.cluster()
    assert not cluster.switching and cluster.core is None and cluster.sampling_capacity == 2 * 4
    log.append_all([health("c0")])
    scheduler.move()
    assert scheduler.view.cluster().switching and len(of(log, CellLost)) == 1


def test_a_scheduler_that_was_paused_loses_nobody_for_its_own_silence(clock: Clock) -> None:
    log = MemoryLog(MemoryStore(), "r")
    log.append_all([started("c0"), started("c1")])
    scheduler = Ruling(log, ("c0", "c1"))
    scheduler.move()
    clock.now += 10 * LIMIT_S
    log.append_all([health("c0")])
    scheduler.move()
    assert of(log, CellLost) == []


def test_a_cell_that_never_starts_keeps_the_others_from_nothing_beyond_the_limit_of_starting(clock: Clock) -> None:
    log = MemoryLog(MemoryStore(), "r")
    log.append_all([started("c0"), started("c1"), admitted()])
    scheduler = Ruling(log, ("c0", "c1", "c2"))
    while not of(log, SwitchRole):
        assert clock.now - 1_000.0 <= STARTING_S + 15.0
        clock.now += 5.0
        log.append_all([health("c0"), health("c1")])
        scheduler.move()
    assert [loss.cell for loss in of(log, CellLost)] == ["c2"]
    assert clock.now - 1_000.0 > STARTING_S

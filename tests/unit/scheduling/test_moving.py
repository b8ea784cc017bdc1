"""The scheduler's answer to a drain: one, by the last command to the cell, and not by a scheduler that was deposed."""

from __future__ import annotations

from dataclasses import replace

from gyre_engine.events import Event
from gyre_engine.events.cells import (
    CellHealth,
    CellRole,
    CellStarted,
    Drained,
    Interrupted,
    Move,
    MoveExecutions,
    SchedulerElected,
    SwitchRole,
)
from gyre_engine.events.executions import Dispatched
from gyre_engine.scheduling.cells import Fleet, observe
from gyre_engine.scheduling.moving import Moving


def started(name: str, position: int) -> CellStarted:
    return CellStarted(
        cell=name, position=position, incarnation="1", engine="native", engine_url=name, capacity=2, role=CellRole.SAMPLING,
        weight_version=3,
    )  # fmt: skip


def leave(number: int, epoch: int = 2) -> SwitchRole:
    return SwitchRole(epoch=epoch, number=number, cell="a", to=CellRole.TRAINING, reason="", water_level=0, sampling_capacity=0)


def drained(number: int) -> Drained:
    return Drained(
        cell="a", incarnation="1", command_epoch=2, command_number=number, weight_version=3,
        requests=(Interrupted("e", "e-x.1", 50),),
    )  # fmt: skip


def after(*events: Event) -> tuple[Moving, Fleet]:
    moving, fleet = Moving("never"), Fleet()
    for event in (started("a", 0), started("b", 1), SchedulerElected(epoch=2, holder="s"), *events):
        fleet = observe(fleet, event)
        moving.see(event, fleet.epoch)
    return moving, fleet


def answer(number: int, drain: int, epoch: int = 2) -> MoveExecutions:
    return MoveExecutions(epoch=epoch, number=number, source="a", drained=(2, drain), moves=(Move("e", "e-x.1", "b", False, 0),))


def test_a_drain_is_answered_once() -> None:
    moving, fleet = after(leave(1), drained(1))
    assert moving.due(fleet, 2, 2) == answer(2, 1)
    moving, fleet = after(leave(1), drained(1), answer(2, 1))
    assert moving.due(fleet, 2, 3) is None and not moving.waits("a")


def test_a_drain_of_an_earlier_command_is_not_answered_any_more() -> None:
    moving, fleet = after(leave(1), drained(1), leave(5))
    assert moving.due(fleet, 2, 6) is None


def test_what_a_deposed_scheduler_says_answers_nothing() -> None:
    moving, fleet = after(leave(1), drained(1), answer(9, 1, epoch=1))
    assert moving.due(fleet, 2, 2) == answer(2, 1)


def test_an_answer_that_is_read_before_its_drain_is_an_answer() -> None:
    """A scheduler that takes over reads two topics without an order between them."""
    moving, fleet = after(leave(1), answer(2, 1), drained(1))
    assert moving.due(fleet, 2, 3) is None and not moving.waits("a")
    moving, fleet = after(leave(1), answer(2, 1), drained(1), leave(5), drained(5))
    assert moving.due(fleet, 2, 6) == answer(6, 5)


def health(cell: str, running: int = 0) -> CellHealth:
    return CellHealth(cell=cell, incarnation="1", healthy=True, running=running)


def test_what_was_planned_a_moment_ago_has_its_place_until_the_cell_says_what_it_runs() -> None:
    """`b` has two places. A drain of `c` has filled them; `a` is drained before `b` has said anything again."""
    of_c = MoveExecutions(
        epoch=2, number=2, source="c", drained=(2, 1),
        moves=(Move("f", "f-x.1", "b", False, 0), Move("f", "f-y.1", "b", False, 0), Move("g", "g-x.1", "b", False, 0)),
    )  # fmt: skip
    moving, fleet = after(health("b"), of_c, leave(3), drained(3))
    assert moving.due(fleet, 2, 4) == replace(answer(4, 3), moves=())
    moving, fleet = after(health("b"), of_c, health("b", running=1), leave(3), drained(3))
    assert moving.due(fleet, 2, 4) == answer(4, 3)


def dispatched(version: int) -> Dispatched:
    return Dispatched(
        execution="e", group="g", index=0, attempt=0, group_size=1, group_number=0, class_number=0, query="q", source="s",
        split="train", harness="mini", weight_version=version,
    )  # fmt: skip


def test_an_execution_stays_away_from_weights_older_than_those_it_was_dispatched_at() -> None:
    moving, fleet = after(dispatched(4), leave(1), drained(1))
    assert moving.due(fleet, 2, 2) == replace(answer(2, 1), moves=())
    moving, fleet = after(dispatched(3), leave(1), drained(1))
    assert moving.due(fleet, 2, 2) == answer(2, 1)


def test_a_scheduler_that_takes_over_answers_what_the_one_before_left() -> None:
    """Its predecessor was killed between the drain and the answer."""
    moving, fleet = after(leave(1), drained(1), SchedulerElected(epoch=3, holder="t"))
    assert moving.due(fleet, 3, 2) == MoveExecutions(
        epoch=3, number=2, source="a", drained=(2, 1), moves=(Move("e", "e-x.1", "b", False, 0),)
    )

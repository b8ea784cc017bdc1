"""The scheduler's answer to a drain: one, by the last command to the cell, and not by a scheduler that was deposed."""

from __future__ import annotations

from consumers.scheduler.moving import Moving
from gyre_engine.events import Event
from gyre_engine.events.cells import (
    CellRole,
    CellStarted,
    Drained,
    Interrupted,
    Move,
    MoveExecutions,
    SchedulerElected,
    SwitchRole,
)
from gyre_engine.scheduling.cells import Fleet, observe


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


def test_a_scheduler_that_takes_over_answers_what_the_one_before_left() -> None:
    """Its predecessor was killed between the drain and the answer."""
    moving, fleet = after(leave(1), drained(1), SchedulerElected(epoch=3, holder="t"))
    assert moving.due(fleet, 3, 2) == MoveExecutions(
        epoch=3, number=2, source="a", drained=(2, 1), moves=(Move("e", "e-x.1", "b", False, 0),)
    )

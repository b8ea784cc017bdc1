"""The fold of the cells: dead incarnations and deposed schedulers say nothing, and topics may interleave as they like."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from gyre_engine.events import Event
from gyre_engine.events.cells import CellHealth, CellRole, CellStarted, RoleChanged, SchedulerElected, SwitchRole
from gyre_engine.scheduling.cells import Fleet, observe

S, T = CellRole.SAMPLING, CellRole.TRAINING


def started(incarnation: str = "1", role: CellRole = S) -> CellStarted:
    return CellStarted(
        cell="c", position=0, incarnation=incarnation, engine="native", engine_url="u", capacity=4, role=role, weight_version=0
    )


def changed(to: CellRole, number: int, incarnation: str = "1", epoch: int = 1) -> RoleChanged:
    return RoleChanged(cell="c", incarnation=incarnation, role=to, command_epoch=epoch, command_number=number)


def switch(to: CellRole, number: int, epoch: int = 1) -> SwitchRole:
    return SwitchRole(epoch=epoch, number=number, cell="c", to=to, reason="", water_level=0, sampling_capacity=0)


def folded(*events: Event) -> Fleet:
    fleet = Fleet()
    for event in events:
        fleet = observe(fleet, event)
    return fleet


def test_what_a_dead_incarnation_says_late_counts_for_nothing() -> None:
    fleet = folded(started("1"), started("2"), changed(T, 1, "1"), CellHealth(cell="c", incarnation="1", healthy=False))
    assert fleet.cells["c"].role is S and fleet.cells["c"].healthy and fleet.serves("c")


def test_a_command_of_a_deposed_scheduler_counts_for_nothing() -> None:
    elected = [SchedulerElected(epoch=1, holder="a"), SchedulerElected(epoch=2, holder="b")]
    fleet = folded(started(), *elected, switch(T, 7, epoch=1))
    assert fleet.due("c") is None and (fleet.epoch, fleet.holder, fleet.number) == (2, "b", 0)


def test_a_command_is_due_until_this_incarnation_has_carried_it_out() -> None:
    told = folded(started(), switch(T, 1))
    assert told.due("c") is T and not told.serves("c")
    done = observe(told, changed(T, 1))
    assert done.due("c") is None and not done.serves("c")
    assert observe(done, started("2")).due("c") is T
    assert observe(done, started("2", T)).due("c") is None


def test_a_command_that_comes_twice_or_late_changes_nothing() -> None:
    fleet = folded(started(), switch(T, 1), switch(S, 2), switch(T, 1), switch(T, 1))
    assert fleet.commands["c"].number == 2 and fleet.due("c") is None


@given(st.data(), st.lists(st.sampled_from([S, T]), min_size=1, max_size=6))
def test_the_end_is_the_same_however_cells_and_commands_interleave(data: st.DataObject, roles: list[CellRole]) -> None:
    commands = [switch(role, number) for number, role in enumerate(roles)]
    reports: list[Event] = [started(), *(changed(role, number) for number, role in enumerate(roles))]
    places = data.draw(st.lists(st.booleans(), min_size=len(commands) + len(reports), max_size=len(commands) + len(reports)))
    left, right = iter(commands), iter(reports)
    mixed = [event for take in places if (event := next(left if take else right, None)) is not None]
    fleet = folded(*mixed, *itertools.chain(left, right))
    assert fleet.cells["c"].role is roles[-1] and fleet.due("c") is None
    assert fleet.serves("c") == (roles[-1] is S)

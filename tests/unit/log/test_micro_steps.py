"""The reader of micro-steps: each record once where steps are asked for in their order, and never more held than it was asked for."""

from __future__ import annotations

import pytest

from gyre_engine.events.training import MicroStep
from gyre_engine.log.memory import MemoryStore
from gyre_engine.log.micro_steps import LoggedMicroSteps
from tests.unit.log.watched import WatchedLog
from tests.unit.training.test_trainers_protocol import micro_step

STEPS, EACH = 4, 3


def work(step: int) -> list[MicroStep]:
    return [micro_step(step, k) for k in range(EACH)]


def names(step: int) -> list[str]:
    return [event.micro_step for event in work(step)]


def logged(*steps: int) -> WatchedLog:
    log = WatchedLog(MemoryStore(), "r")
    for step in steps:
        log.append_all(work(step))
    return log


def test_steps_in_their_order_are_read_once_and_one_at_a_time() -> None:
    log = logged(1, 2, 3, 4)
    reader = LoggedMicroSteps(log)
    for step in range(1, STEPS + 1):
        found = reader.of(names(step))
        assert list(found) == names(step)
        assert {event.step for event in found.values()} == {step}
        del found
    assert log.handed == list(range(STEPS * EACH))
    assert log.most == EACH


def test_steps_before_the_first_that_is_asked_for_are_not_kept() -> None:
    log = logged(1, 2, 3, 4)
    assert list(LoggedMicroSteps(log).of(names(4))) == names(4)
    assert log.most == EACH


@pytest.mark.parametrize("order", [(1, 1, 2, 2, 3), (1, 2, 3, 1, 2, 3), (3, 1, 2), (2, 3, 2, 1)], ids=str)
def test_it_finds_all_in_whatever_order_they_stand_and_however_often(order: tuple[int, ...]) -> None:
    """Attempts at a step log its micro-steps again, and so may a core that was deposed."""
    log = logged(*order)
    reader = LoggedMicroSteps(log)
    for step in (1, 2, 3):
        assert {name: event.step for name, event in reader.of(names(step)).items()} == dict.fromkeys(names(step), step)
    assert log.most <= EACH + 1


def test_they_come_in_the_order_in_which_they_are_asked_for_also_again() -> None:
    reader = LoggedMicroSteps(logged(1, 2))
    for step in (1, 2, 1):
        assert list(reader.of(names(step)[::-1])) == names(step)[::-1]


def test_what_is_not_on_the_log_is_left_out_and_the_rest_is_still_found() -> None:
    log = logged(1, 3, 4, 5)
    reader = LoggedMicroSteps(log)
    assert reader.of([*names(1), "another"]).keys() == set(names(1))
    assert reader.of(names(2)) == {}
    assert list(reader.of(names(3))) == names(3)
    assert log.most <= EACH + 2  # and the one before and the one at hand of those that are passed by


def test_nothing_is_read_for_a_step_without_micro_steps() -> None:
    log = logged(1)
    assert LoggedMicroSteps(log).of([]) == {}
    assert log.handed == []

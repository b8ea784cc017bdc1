"""A scheduler that is killed or sleeps between a command and what follows: the next goes on from the log, and nobody obeys two."""

from __future__ import annotations

import pytest

from gyre_engine.events.cells import (
    CellRole,
    Drained,
    Interrupted,
    Move,
    MoveExecutions,
    RoleChanged,
    SchedulerElected,
    SwitchRole,
)
from gyre_engine.log.election import Deposed
from gyre_engine.log.memory import MemoryLog, MemoryStore
from tests.unit.scheduling.test_silent_cells import Ruling, admitted, of, started

CELLS = ("c0", "c1", "c2")


@pytest.fixture
def log() -> MemoryLog:
    """Three cells that sample, and a batch that is ready: the core is to train."""
    made = MemoryLog(MemoryStore(), "r")
    made.append_all([*map(started, CELLS), admitted()])
    return made


def told(log: MemoryLog) -> list[tuple[int, int, str]]:
    return [(c.epoch, c.number, c.cell) for c in of(log, SwitchRole)]


def obeyed() -> RoleChanged:
    return RoleChanged(cell="c0", incarnation="1", role=CellRole.TRAINING, command_epoch=1, command_number=1)


def test_a_command_whose_scheduler_was_killed_is_waited_for_and_not_given_again(log: MemoryLog) -> None:
    Ruling(log, CELLS).move()
    assert told(log) == [(1, 1, "c0")]
    successor = Ruling(log, CELLS)
    successor.move()
    assert told(log) == [(1, 1, "c0")] and successor.view.cluster().switching
    log.append_all([obeyed()])
    successor.move()
    assert not successor.view.cluster().switching


def test_a_drain_whose_scheduler_was_killed_is_answered_by_the_next(log: MemoryLog) -> None:
    Ruling(log, CELLS).move()
    requests = (Interrupted("e", "e-x.1", 50),)
    log.append_all([Drained(cell="c0", incarnation="1", command_epoch=1, command_number=1, weight_version=0, requests=requests)])
    for _ in range(3):
        Ruling(log, CELLS).move()
    [answer] = of(log, MoveExecutions)
    assert (answer.epoch, answer.source, answer.drained) == (2, "c0", (1, 1))
    assert answer.moves == (Move("e", "e-x.1", "c2", True),)


def test_a_scheduler_that_wakes_behind_its_successor_commands_nobody(log: MemoryLog) -> None:
    """It was about to command when it fell asleep: what it writes under its old epoch counts for nothing, and it ends."""
    asleep, successor = Ruling(log, CELLS), Ruling(log, CELLS)
    asleep.idle()
    with pytest.raises(Deposed, match="rules with epoch 2"):
        asleep.move()
    successor.move()
    assert told(log) == [(1, 1, "c0"), (2, 1, "c0")]
    assert successor.view.fleet.commands["c0"].epoch == 2
    assert [e.epoch for e in of(log, SchedulerElected)] == [1, 2]

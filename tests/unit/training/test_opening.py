"""What a step waits for is asked for at every idle poll: its cost is that of a class of groups, however long the run."""

from __future__ import annotations

from collections.abc import Collection, Iterator

import pytest

from consumers.trainer.board import Board
from consumers.trainer.opening import next_inputs
from consumers.trainer.settings import TrainerSettings
from gyre_engine.batching.step_inputs import Packing
from gyre_engine.events.training import GroupAdmitted
from gyre_engine.scheduling.classes import ClassPlan

BATCH = 4
SETTINGS = TrainerSettings(
    cell="c0", core=True, holder="p", model_path="", plan=ClassPlan(BATCH, 1, 1, 1000), packing=Packing(64, 64), lease_s=1.0,
    checkpoint_url="", checkpoint_every=0,
)  # fmt: skip


def admitted(number: int) -> GroupAdmitted:
    return GroupAdmitted(
        group=f"g{number}", group_number=number, class_number=SETTINGS.plan.class_of(number), query="q", dispatched_version=0,
        mean=0.0, deviation=0.0, trains=False, reason="", executions=(), left_out=(),
    )  # fmt: skip


class Counted(Collection[object]):
    """A collection that may be asked, which is counted, but not gone through."""

    def __init__(self, held: Collection[object]) -> None:
        self.held, self.asked = held, 0

    def __contains__(self, one: object) -> bool:
        self.asked += 1
        return one in self.held

    def __len__(self) -> int:
        return len(self.held)

    def __iter__(self) -> Iterator[object]:
        raise AssertionError("the whole history is gone through")


def after(steps: int) -> Board:
    """Of a run that has trained `steps` steps, and of whose next class the second group alone is admitted."""
    board, done = Board("c0"), range(steps * BATCH)
    for number in (*done, len(done) + 1):
        board.backlog.see(admitted(number))
    board.backlog.consume(f"g{number}" for number in done)
    return board


def test_groups_that_a_step_waits_for_are_named_whichever_is_read_first() -> None:
    board = after(10)
    assert next_inputs(board, SETTINGS, None) == ("group 40", "group 42", "group 43")
    board.backlog.consume(["g40"])  # the ledger was read before the admission
    assert next_inputs(board, SETTINGS, None) == ("group 40", "group 42", "group 43")
    board.backlog.see(admitted(40))
    assert next_inputs(board, SETTINGS, None) == ("group 42", "group 43")


@pytest.mark.parametrize("steps", [10, 500])
def test_naming_them_asks_once_for_each_group_of_a_class(steps: int) -> None:
    board = after(steps)
    numbers, consumed = Counted(board.backlog.numbers), Counted(board.backlog.consumed)
    board.backlog.numbers, board.backlog.consumed = numbers, consumed  # type: ignore[assignment]
    missing = next_inputs(board, SETTINGS, None)
    assert isinstance(missing, tuple) and len(missing) == BATCH - 1
    assert (numbers.asked, consumed.asked) == (BATCH, 1)  # of what is consumed: the one group that is admitted

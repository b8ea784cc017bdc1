"""What a step waits for is asked for at every idle poll: its cost is that of a class of groups, however long the run. And what is
older than phi and mu allow never opens a step."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from consumers.trainer.board import CORE_TOPICS, Board
from consumers.trainer.opening import next_inputs
from consumers.trainer.settings import TrainerSettings
from gyre_engine.batching.step_inputs import Packing, StepInputs
from gyre_engine.events.cells import CellRole, SchedulerElected
from gyre_engine.events.training import GroupAdmitted, StepCommitted
from gyre_engine.scheduling.classes import ClassPlan
from gyre_engine.training.ledger.fold import Ledger
from gyre_engine.training.replica import Untrainable
from tests.unit.replay.test_derived_again import logged
from tests.unit.training.test_trainers_protocol import Bench, begin

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
    assert next_inputs(board, SETTINGS, None, [].append) == ("group 40", "group 42", "group 43")
    board.backlog.consume(["g40"])  # the ledger was read before the admission
    assert next_inputs(board, SETTINGS, None, [].append) == ("group 40", "group 42", "group 43")
    board.backlog.see(admitted(40))
    assert next_inputs(board, SETTINGS, None, [].append) == ("group 42", "group 43")


@pytest.mark.parametrize("steps", [10, 500])
def test_naming_them_asks_once_for_each_group_of_a_class(steps: int) -> None:
    board = after(steps)
    numbers, consumed = Counted(board.backlog.numbers), Counted(board.backlog.consumed)
    board.backlog.numbers, board.backlog.consumed = numbers, consumed  # type: ignore[assignment]
    missing = next_inputs(board, SETTINGS, None, [].append)
    assert isinstance(missing, tuple) and len(missing) == BATCH - 1
    assert (numbers.asked, consumed.asked) == (BATCH, 1)  # of what is consumed: the one group that is admitted


def ready(bench: Bench, committed: int) -> Board:
    """A core that has committed so many steps and whose next group, of calls at versions 0 to 2, is admitted and may be trained."""
    bench.role("c0", CellRole.TRAINING)
    bench.log.append_all([SchedulerElected(epoch=1, holder="s"), begin(committed, epoch=1)])
    board = Board("c0")
    records = [r for log in (bench.log, logged((1.0, 0.0), (3, 2))) for topic in CORE_TOPICS for r in log.read(topic)]
    for record in records:
        board.see(record)
    board.ledger = Ledger(
        core_epoch=1,
        committed=StepCommitted(
            core_epoch=1, step=committed, attempt=1, merge_order=(), weights_hash="", executions=0, grad_norm=0.0, loss=0.0,
            reward_mean=0.0,
        ),
    )  # fmt: skip
    return board


@pytest.mark.parametrize(("phi", "mu"), [(0, 3), (1, 2), (2, 1)])
def test_tokens_as_old_as_phi_and_mu_allow_are_trained_and_older_ones_never(tmp_path: Path, phi: int, mu: int) -> None:
    """Step 3 trains at version 2: tokens of version 0 are 2 = phi + mu - 1 versions old. In step 4 they are too old, for good."""
    settings = replace(SETTINGS, plan=ClassPlan(1, mu, phi, 1000))
    bench = Bench(tmp_path)
    try:
        passed: list[str] = []
        inputs = next_inputs(ready(bench, 2), settings, None, passed.append)
        assert passed == ["data", "burst"]
        assert isinstance(inputs, StepInputs) and inputs.staleness_max == 2
        with pytest.raises(
            Untrainable, match=rf"step 4 would train tokens that are 3 versions old; phi {phi} \+ mu {mu} - 1 allows 2"
        ):
            next_inputs(ready(bench, 3), settings, None, passed.append)
    finally:
        bench.close()

"""What a recovery reads and holds while it makes steps again. Trainers of test_same_bits."""

from __future__ import annotations

import pytest

from consumers.trainer.recovery import recover
from gyre_engine.batching.step_inputs import probe
from gyre_engine.training.optimizer.adamw import AdamW
from tests.unit.log.watched import WatchedLog
from tests.unit.training.cast import Cast
from tests.unit.training.test_same_bits import STEPS, Staged, WavyReplica, clock, hashes, run, staged  # noqa: F401
from tests.unit.training.test_trainers_protocol import MICRO_STEPS


def probe_of(cast: Cast, step: int) -> list[int]:
    return probe(cast.work(step)) if step else []


@pytest.mark.parametrize("through", [None, 0, 2, 3])
@pytest.mark.parametrize("every", [0, 2, STEPS], ids=lambda every: f"a checkpoint every {every}")
def test_a_recovery_reads_micro_steps_once_and_holds_those_of_one_step(staged: Staged, every: int, through: int | None) -> None:  # noqa: F811
    """However many steps it makes again, and wherever it begins."""
    cast = staged(every)
    run(cast, STEPS)
    log, replica = WatchedLog(cast.store, "r"), WavyReplica()
    passed: list[tuple[int, str, list[int]]] = []
    found = recover(
        cast.settings("c0"), log, replica, AdamW(replica.parameters), through=through,  # type: ignore[arg-type]
        there=lambda ids: passed.append((replica.version, replica.weights_hash(), ids)),
    )  # fmt: skip
    weights = [WavyReplica().weights_hash(), *hashes(cast)]
    assert (found.version, found.probe, replica.weights_hash()) == (STEPS, probe_of(cast, STEPS), weights[STEPS])
    assert passed == ([] if through is None else [(through, weights[through], probe_of(cast, through))])
    assert log.handed == list(range(STEPS * MICRO_STEPS))
    assert log.most <= MICRO_STEPS + 1


def test_it_says_where_the_last_commit_stands(staged: Staged) -> None:  # noqa: F811
    """The one that the ledger took, whatever is said after it."""
    cast = staged(0)
    replica = WavyReplica()
    assert recover(cast.settings("c0"), cast.log, replica, AdamW(replica.parameters)).position == -1  # type: ignore[arg-type]
    run(cast, 2)
    (place,) = [r.offset for r in cast.log.read("training") if r.event.TYPE == "step-committed" and r.event.step == 2]  # type: ignore[attr-defined]
    replica = WavyReplica()
    assert recover(cast.settings("c0"), cast.log, replica, AdamW(replica.parameters)).position == place  # type: ignore[arg-type]

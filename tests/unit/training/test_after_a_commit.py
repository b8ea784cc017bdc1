"""What a committed step owes, whoever dies between its parts: a checkpoint of what the ledger took alone, the version that an
evaluation needs, a probe for each version. The bench of test_faults_of_trainers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from consumers.trainer import core as core_module
from consumers.trainer.publisher import Publisher
from consumers.trainer.settings import TrainerSettings
from gyre_engine.batching.step_inputs import PROBE_LENGTH, fixed_probe
from gyre_engine.events.executions import Dispatched
from gyre_engine.events.training import Checkpointed, EvaluationReported, Published, StepCommitted, StepOpened, StepRefused
from gyre_engine.log.election import Deposed
from gyre_engine.scheduling.classes import ClassPlan
from gyre_engine.training import checkpoint
from gyre_engine.training.checkpoint import Checkpoint
from tests.unit.training.cast import Cast, Clock
from tests.unit.training.test_trainers_protocol import ALL, CountingReplica


class SpeakingReplica(CountingReplica):
    """Its log-probabilities are its weight: they say with which weights a probe was scored."""

    def logprobs(self, ids: NDArray[np.int32], *, temperature: float | None = None) -> NDArray[np.float32]:
        return np.full(len(ids) - 1, self.weights[0], dtype=np.float32)


class Speaking(Cast):
    replica_of = SpeakingReplica


class InBursts(Speaking):
    """Engines take each second version."""

    def settings(self, cell: str) -> TrainerSettings:
        return replace(super().settings(cell), plan=ClassPlan(1, 2, 0, 8))


Staged = Callable[..., Any]


class KeepsOne(Speaking):
    """The newest checkpoint alone stays."""

    def settings(self, cell: str) -> TrainerSettings:
        return replace(super().settings(cell), checkpoint_keep=1)


@pytest.fixture
def staged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Staged]:
    """Casts of any kind; their clock is `cast.clock`."""
    clock, made = Clock(), []
    monkeypatch.setattr(core_module, "time", clock)

    def make(every: int = 0, kind: type[Cast] = Speaking) -> Cast:
        made.append(kind(tmp_path / str(len(made)), clock, every))
        return made[-1]

    yield make
    for cast in made:
        cast.close()


def run(cast: Cast, until: int) -> None:
    for step in range(cast.committed + 1, until + 1):
        cast.open_step()
        cast.finish(step)


def deposed_at_its_commit(cast: Cast) -> tuple[Any, int]:
    """A core that commits behind its successor's election; the old core, and the offset of the commit that counts for nothing."""
    old, wake = cast.commits_behind_a_successor()
    wake()
    (place,) = [r.offset for r in cast.log.read("training") if isinstance(r.event, StepCommitted)]
    return old, place


def test_a_deposed_core_stores_no_checkpoint_of_what_it_committed(staged: Staged) -> None:
    cast = staged(every=1)
    old, _ = deposed_at_its_commit(cast)
    with pytest.raises(Deposed):
        old.advance()
    assert not old.pay_last()
    assert checkpoint.steps(cast.url) == []
    cast.finish(1)
    cast.check(1)
    assert checkpoint.steps(cast.url) == [1]


def test_a_checkpoint_whose_commit_the_ledger_did_not_take_is_written_over(staged: Staged) -> None:
    """As a core of before stored it: at once after its commit was written."""
    cast = staged(every=1)
    _, place = deposed_at_its_commit(cast)
    (late,) = cast.events(StepCommitted)
    weights = np.array([ALL], np.float32).tobytes()
    checkpoint.write(cast.url, Checkpoint(1, place, weights, "another state"), lambda _: None)
    assert checkpoint.read(cast.url).weights_hash == late.weights_hash
    cast.finish(1)
    cast.check(1)
    stored = checkpoint.read(cast.url, 1)
    assert (stored.position > place, stored.state_hash) == (True, "of no state")


def test_a_checkpoint_that_was_due_is_stored_when_the_process_is_told_to_stop(staged: Staged) -> None:
    """The run may end with its last commit, before the next move."""
    cast = staged(every=1)
    cast.open_step()
    cast.until(lambda: cast.core.owes, *cast.satellites.values(), cast.move_core)
    cast.read_on()
    assert cast.committed == 1 and checkpoint.steps(cast.url) == []
    assert cast.core.pay_last()
    assert checkpoint.steps(cast.url) == [1] and [e.step for e in cast.events(Checkpointed)] == [1]


def test_a_process_that_is_told_to_stop_leaves_no_more_checkpoints_than_are_kept(staged: Staged) -> None:
    """Told so at any move after the last commit; the older one goes once the new one's event was read back."""
    for moves in range(4):
        cast = staged(1, KeepsOne)
        run(cast, 1)
        cast.open_step()
        cast.until(lambda cast=cast: cast.committed == 2, *cast.satellites.values(), cast.move_core)
        for _ in range(moves):
            cast.move_core()
        while cast.core.owes:
            cast.read_on()
            if not cast.core.pay_last():
                break
        assert checkpoint.steps(cast.url) == [2], moves
        assert [e.step for e in cast.events(Checkpointed)] == [1, 2]


def an_evaluation(version: int) -> Dispatched:
    return Dispatched(
        execution=f"v{version:03d}-val-0001.0.0", group=f"v{version:03d}-val-0001", index=0, attempt=0, group_size=1,
        group_number=0, class_number=0, query="q", source="s", split="val", harness="mini", weight_version=version,
        evaluation=f"v{version:03d}-val",
    )  # fmt: skip


def report(version: int) -> EvaluationReported:
    name = f"v{version:03d}-val"
    return EvaluationReported(evaluation=name, split="val", version=version, episodes=1, failed=0, mean=0.0, low=0.0, high=0.0)


def published(cast: Cast, epoch: int) -> list[Published]:
    return [e for e in cast.events(Published) if e.core_epoch == epoch]  # type: ignore[attr-defined]


@pytest.mark.parametrize("every", [0, 1, 2])
def test_a_core_that_died_while_an_evaluation_held_its_publication_back_leaves_its_version_to_the_next(
    staged: Staged, every: int
) -> None:
    """Version 1's image died with the core, and cells that have not pulled it are to evaluate with it: it comes first."""
    cast = staged(every)
    run(cast, 1)
    cast.log.append_all([an_evaluation(1)])
    cast.open_step()
    cast.until(lambda: cast.committed == 2, *cast.satellites.values(), cast.move_core)
    for _ in range(20):
        cast.move_core()
    assert checkpoint.steps(cast.url) == {0: [], 1: [1, 2], 2: [2]}[every], "no checkpoint waits for it"
    cast.next_core()
    for _ in range(20):
        cast.move_core()
    (again,) = published(cast, epoch=2)
    first = published(cast, epoch=1)[-1]
    assert (
        (again.version, again.weights_hash)
        == (first.version, first.weights_hash)
        == (1, cast.events(StepCommitted)[0].weights_hash)
    )
    assert again.probe_logprobs.tolist() == [ALL] and again.probe_ids.tolist() == [0, 0]
    cast.log.append_all([report(1)])
    cast.finish(2)
    assert [e.version for e in published(cast, epoch=2)] == [1, 2]
    cast.finish(3)
    cast.check(3)


def test_in_the_middle_of_a_burst_an_evaluation_gets_the_version_that_engines_hold(staged: Staged) -> None:
    """mu is 2: engines hold version 2 while 3 is published for trainers, and take the first word of a new core."""
    cast = staged(kind=InBursts)
    run(cast, 3)
    cast.log.append_all([an_evaluation(2)])
    cast.next_core()
    cast.until(lambda: 3 in cast.core_board.published, cast.move_core)
    assert [e.version for e in published(cast, epoch=2)] == [2, 3]
    assert [e.probe_logprobs.tolist() for e in published(cast, epoch=2)] == [[2 * ALL], [3 * ALL]]


def test_without_an_evaluation_a_new_core_publishes_what_is_committed_alone(staged: Staged) -> None:
    cast = staged(kind=InBursts)
    run(cast, 3)
    cast.next_core()
    assert [e.version for e in published(cast, epoch=2)] == [3]


def test_while_an_evaluation_needs_the_version_before_no_older_checkpoint_goes(staged: Staged) -> None:
    cast = staged(1, KeepsOne)
    run(cast, 1)
    cast.log.append_all([an_evaluation(1)])
    cast.open_step()
    cast.until(lambda: cast.committed == 2, *cast.satellites.values(), cast.move_core)
    for _ in range(20):
        cast.move_core()
    assert checkpoint.steps(cast.url) == [1, 2]
    assert not cast.core.pay_last() and checkpoint.steps(cast.url) == [1, 2], "not at a stop either"
    cast.log.append_all([report(1)])
    cast.until(lambda: checkpoint.steps(cast.url) == [2], cast.move_core)
    assert [e.version for e in published(cast, epoch=1)] == [0, 1, 2]


def test_after_a_takeover_a_version_is_probed_by_a_path_of_its_step(staged: Staged) -> None:
    """The first micro-step's ids; each version of an engine can be compared."""
    cast = staged()
    run(cast, 1)
    cast.next_core()
    (event,) = published(cast, epoch=2)
    first = cast.events(StepOpened)[0].micro_steps[0]
    (ids,) = [r.event.ids for r in cast.log.read("micro-steps") if r.event.micro_step == first]
    assert event.probe_ids.tolist() == ids.tolist() and event.probe_logprobs.tolist() == [ALL]


def test_the_initial_weights_are_probed_by_ids_of_the_vocabulary(staged: Staged) -> None:
    cast = staged()
    core, replica = cast.core, SpeakingReplica()
    publisher = Publisher(core._pen, replica, core._optimizer, core._merging._transfer, {}, fixed_probe=fixed_probe(50))  # type: ignore[arg-type]
    publisher.export()
    publisher.publish(1, 0, [])
    event = published(cast, epoch=1)[-1]
    assert event.probe_ids.tolist() == fixed_probe(50) and len(event.probe_logprobs) == PROBE_LENGTH - 1


def test_a_fixed_probe_is_the_same_everywhere_and_spread_over_the_vocabulary() -> None:
    """Knuth's MMIX generator from 0: states 1442695040888963407, 1876011003808476466, 11166244414315200793 (TAOCP 2, 3.3.4)."""
    states = [1442695040888963407, 1876011003808476466, 11166244414315200793]
    assert fixed_probe(1000)[:3] == [int(1000 * (s >> 32) / 2**32) for s in states]
    ids = fixed_probe(49152)
    assert len(ids) == PROBE_LENGTH == len(set(ids)) and 0 <= min(ids) < 5000 and 44000 < max(ids) < 49152
    assert fixed_probe(49152, context=10) == ids[:10]
    assert fixed_probe(0) == fixed_probe(1) == [] and set(fixed_probe(2)) == {0, 1}


def test_a_refusal_counts_only_from_the_core_that_rules(staged: Staged) -> None:
    """A deposed core's late word is no try of the step that its successor will open."""
    cast = staged()
    late = StepRefused(core_epoch=1, step=1, attempt=1, outcome="stop", cells=(), micro_steps=())
    cast.log.append_all([late])
    cast.next_core()
    assert cast.core_board.refused == [late]
    cast.log.append_all([late])
    cast.read_on()
    assert cast.core_board.refused == [late]

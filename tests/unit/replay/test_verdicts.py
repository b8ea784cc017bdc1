"""What a replay says of each step, whatever is wrong with it; and what it holds and opens meanwhile. Trainers of test_same_bits."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from typing import ClassVar

import pytest

from consumers.replay import process
from consumers.replay.process import ReplaySettings, StepVerdict, replay
from consumers.trainer.board import CORE_TOPICS
from gyre_engine.admission import AdmissionSettings
from gyre_engine.batching import PackedMicroStep
from gyre_engine.batching.assemble import AssemblyError
from gyre_engine.batching.microstep import InvalidMicroStep
from gyre_engine.batching.step_inputs import Packing
from gyre_engine.batching.work import InvalidWork
from gyre_engine.events.cells import SchedulerElected
from gyre_engine.events.training import StepOpened
from gyre_engine.experts import BadRouting
from gyre_engine.log.memory import MemoryLog
from gyre_engine.losses.config import LossConfig
from gyre_engine.losses.names import LossError
from gyre_engine.training.metrics import StepMetrics
from gyre_engine.training.replica import TrainingError
from tests.unit.log.watched import WatchedLog
from tests.unit.replay.test_derived_again import logged
from tests.unit.training.cast import Cast
from tests.unit.training.test_same_bits import HYPER, Staged, WavyReplica, clock, hashes, run, staged  # noqa: F401
from tests.unit.training.test_trainers_protocol import MICRO_STEPS, begin

SETTINGS = ReplaySettings(
    model_path="", packing=Packing(100, 100), threads=1, admission=AdmissionSettings("verifier", "1"),
    hyper=HYPER, verify=False,
)  # fmt: skip


class Opened(WavyReplica):
    """As `open_replica` gives it."""

    said: ClassVar[list[str]] = []
    fails: Exception | None = None

    def shards(self) -> None:
        """An optimizer of its own keeps the state."""

    def close(self) -> None:
        self.said.append("closed")

    def accumulate(self, step: PackedMicroStep, loss: LossConfig) -> StepMetrics:
        if self.fails is not None and self.version == 1:
            raise self.fails
        return super().accumulate(step, loss)


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was opened and closed, in order."""
    found: list[str] = []
    monkeypatch.setattr(Opened, "said", found)
    monkeypatch.setattr(process, "open_replica", lambda *_: found.append("replica") or Opened())
    return found


def verdicts(log: MemoryLog, said: list[str], settings: ReplaySettings = SETTINGS) -> list[StepVerdict]:
    @contextlib.contextmanager
    def opened() -> Iterator[MemoryLog]:
        said.append("log")
        yield log

    return list(replay(opened, settings))


def trained(cast: Cast, steps: int) -> MemoryLog:
    run(cast, steps)
    return cast.log


def test_the_replica_stands_before_the_log_is_opened_and_makes_the_same_weights(staged: Staged, said: list[str]) -> None:  # noqa: F811
    """Several ranks are forked where the replica is made: a log has threads by then."""
    cast = staged(0)
    log = trained(cast, 3)
    assert [v.weights_hash for v in verdicts(log, said)] == hashes(cast)
    assert said == ["replica", "log", "closed"]
    assert [v.step for v in verdicts(log, said, replace(SETTINGS, until=2))] == [1, 2]


@pytest.mark.parametrize("kind", [AssemblyError, InvalidWork, InvalidMicroStep, BadRouting, LossError, TrainingError])
def test_what_a_step_is_wrong_in_is_its_verdict(
    staged: Staged,  # noqa: F811
    said: list[str],
    monkeypatch: pytest.MonkeyPatch,
    kind: type[Exception],
) -> None:
    log = trained(staged(0), 3)
    monkeypatch.setattr(Opened, "fails", kind("the thing and the remedy"))
    first, last = verdicts(log, said)
    assert (first.step, first.verified) == (1, None)
    assert (last.step, last.verified) == (2, False)
    assert last.problem == "step 2 cannot be made again: the thing and the remedy"
    assert said[-1] == "closed"


def test_a_gradient_that_is_not_finite_is_a_verdict(staged: Staged, said: list[str], monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    log = trained(staged(0), 2)
    monkeypatch.setattr(Opened, "poisoned", frozenset({"2"}))
    last = verdicts(log, said)[-1]
    assert (last.step, last.verified) == (2, False)
    assert "step 2 cannot be made again: the gradient of update 2 is not finite" in last.problem


def test_a_ledger_that_cannot_be_followed_is_a_verdict_after_the_steps_before(staged: Staged, said: list[str]) -> None:  # noqa: F811
    log = trained(staged(0), 1)
    twice = StepOpened(
        core_epoch=1, step=2, attempt=1, weights_hash="", groups=(), scores=(), micro_steps=("m", "m"), executions=1, divisor=1,
        staleness_max=0, staleness_mean=0.0,
    )  # fmt: skip
    log.append_all([twice])
    made, broken = verdicts(log, said)
    assert (made.step, made.verified) == (1, None)
    assert (broken.step, broken.verified) == (2, False)
    assert "step 2 lists a micro-step twice" in broken.problem
    assert [v.step for v in verdicts(log, said, replace(SETTINGS, until=0))] == [1, 2]


def test_micro_steps_are_read_once_and_those_of_one_step_are_held(staged: Staged, said: list[str]) -> None:  # noqa: F811
    cast = staged(0)
    run(cast, 4)
    log = WatchedLog(cast.store, "r")
    assert [v.weights_hash for v in verdicts(log, said)] == hashes(cast)
    assert log.handed == list(range(4 * MICRO_STEPS))
    assert log.most <= MICRO_STEPS + 1


def whole(cast: Cast) -> MemoryLog:
    """A run of one step from its dispatch on, which the core itself packed."""
    cast.log.append_all([SchedulerElected(epoch=2, holder="s"), begin(0, epoch=2)])
    source = logged((1.0, 0.0), (2, 1))
    for topic in ("scores", *CORE_TOPICS):
        for record in source.read(topic):
            cast.log.append(record.event, id=record.id, at=record.at).result()
    cast.until(lambda: cast.committed == 1, cast.move_core)
    return cast.log


def test_a_step_that_the_core_packed_is_verified_from_its_calls(staged: Staged, said: list[str]) -> None:  # noqa: F811
    (verdict,) = verdicts(whole(staged(0)), said, replace(SETTINGS, verify=True))
    assert (verdict.step, verdict.verified, verdict.problem) == (1, True, "")
    assert verdict.micro_steps == 1


def test_a_step_that_was_packed_otherwise_is_told(staged: Staged, said: list[str]) -> None:  # noqa: F811
    other = replace(SETTINGS, verify=True, packing=replace(SETTINGS.packing, config_hash="another"))
    (verdict,) = verdicts(whole(staged(0)), said, other)
    assert (verdict.step, verdict.verified) == (1, False)
    assert verdict.problem == "step 1: micro-step 0 on the log is not what its model calls give"

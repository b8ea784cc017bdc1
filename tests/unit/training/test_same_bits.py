"""A run that is stopped, or whose core's trainer is killed, at any point has the bits of one that never was; and what it does with
gradients that are not finite. The bench of test_trainers_protocol, with Megatron's Adam and weights whose bits show every difference.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from consumers.trainer import core as core_module
from consumers.trainer.recovery import PassedOver, recover
from gyre_engine.batching import PackedMicroStep
from gyre_engine.batching.step_inputs import packed
from gyre_engine.dead_end import DeadEnd
from gyre_engine.events.cells import CellRole
from gyre_engine.events.training import CheckpointPassedOver, MicroStep, Sealed, StepCommitted, StepOpened, StepRefused
from gyre_engine.losses.config import LossConfig
from gyre_engine.training import checkpoint
from gyre_engine.training.checkpoint import CheckpointError, OfSomethingElse, Origin
from gyre_engine.training.ledger.history import train_again
from gyre_engine.training.metrics import StepMetrics
from gyre_engine.training.model.flat import flatten
from gyre_engine.training.optimizer.adamw import AdamW
from gyre_engine.training.replica import Hyper, TrainingError, Untrainable, require_trainable
from tests.unit.training.cast import Cast, Clock, history_of
from tests.unit.training.test_faults_of_trainers import POINTS, die_at
from tests.unit.training.test_trainers_protocol import micro_step

STEPS = 4
HYPER = Hyper(lr=0.05, warmup_steps=2, schedule="cosine", decay_steps=STEPS, min_lr=0.001, weight_decay=0.1, clip=0.5)
POISON = 3
"""The micro-step whose gradient is not a number, where `poisoned` says so."""


class WavyReplica:
    """Gradients depend on the weights, on the micro-step and on the order of sums, down to the last bit."""

    dtype = torch.float32
    poisoned: frozenset[str] = frozenset()
    """Of the steps that these micro-steps stand in, the one of index POISON gives no numbers."""

    def __init__(self) -> None:
        torch.manual_seed(11)
        shapes = {"matrix": (7, 5), "norm": (9,)}
        named = [(name, torch.nn.Parameter(torch.randn(shape).to(self.dtype))) for name, shape in shapes.items()]
        self.version, self.parameters = 0, flatten(named)
        self._initial = self.parameters.weights.clone()

    def load(self, image: bytes | Path, version: int) -> None:
        held = self._initial if isinstance(image, Path) else torch.frombuffer(bytearray(image), dtype=self.dtype)
        self.parameters.weights.copy_(held)
        self.version = version

    def accumulate(self, step: PackedMicroStep, loss: LossConfig) -> StepMetrics:
        k = int(step.ids[0])
        inside = torch.zeros_like(self.parameters.gradients)
        for slot in self.parameters.layout:
            slot.of(inside).copy_(torch.sin(slot.of(self.parameters.weights).float() * (k + 1)) / 3)
        bad = f"{self.version + 1}" in self.poisoned and k == POISON
        self.parameters.gradients.add_(inside * float("nan") if bad else inside)
        return StepMetrics(tokens=step.tokens, targets=step.targets)

    def zero(self) -> None:
        self.parameters.gradients.zero_()

    def gradient_buffer(self) -> NDArray[np.float32]:
        return self.parameters.gradients.numpy()

    def finite(self) -> bool:
        return bool(torch.isfinite(self.parameters.gradients).all())

    def logprobs(self, ids: NDArray[np.int32], *, temperature: float | None = None) -> NDArray[np.float32]:
        return np.zeros(len(ids) - 1, dtype=np.float32)

    def export(self) -> bytes:
        return self.parameters.weights.view(torch.uint8).numpy().tobytes()

    def weights_hash(self) -> str:
        return hashlib.sha256(self.export()).hexdigest()


class HalfReplica(WavyReplica):
    """bf16 weights: the masters live in the optimizer and in checkpoints alone."""

    dtype = torch.bfloat16


def stage(folder: Path, clock: Clock, every: int, replica: type[WavyReplica] = WavyReplica, hyper: Hyper = HYPER) -> Cast:
    """The core alone trains; satellites stay away, so that every history merges the same buffers in the same order."""
    kinds: dict[str, Any] = {"replica_of": replica, "optimizer_of": staticmethod(lambda r: AdamW(r.parameters)), "hyper": hyper}
    cast: Cast = type("Stage", (Cast,), kinds)(folder, clock, every)
    for cell in ("c1", "c2"):
        cast.gone(cast.satellites.pop(cell).transfer)  # type: ignore[attr-defined]
    return cast


def hashes(cast: Cast) -> list[str]:
    """Of the weights after each committed step."""
    return [step.committed.weights_hash for step in history_of(r.event for r in cast.log.read("training")).steps]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(core_module, "time", made)
    return made


Staged = Callable[..., Cast]


@pytest.fixture
def staged(tmp_path: Path, clock: Clock) -> Iterator[Staged]:
    """Casts, each with a store of its own."""
    made: list[Cast] = []

    def make(every: int, **given: Any) -> Cast:
        made.append(stage(tmp_path / str(len(made)), clock, every, **given))
        return made[-1]

    yield make
    for cast in made:
        cast.close()


def run(cast: Cast, until: int) -> list[str]:
    while cast.committed < until:
        cast.open_step()
        cast.finish(cast.committed + 1)
    return hashes(cast)


@pytest.mark.parametrize("replica", [WavyReplica, HalfReplica], ids=["fp32", "bf16"])
@pytest.mark.parametrize("every", [1, 2, 3])
def test_checkpoint_then_resume_gives_the_bits_of_the_run_that_never_stopped(staged: Staged, every: int, replica: type) -> None:
    """Stopped after each step in turn: from a checkpoint of just then, or from an older one and the steps made again after it."""
    expected = run(staged(every, replica=replica), STEPS)
    assert len(set(expected)) == STEPS
    for stop in range(1, STEPS):
        cast = staged(every, replica=replica)
        run(cast, stop)
        cast.next_core()
        assert run(cast, STEPS) == expected
        assert checkpoint.read(cast.url).state_hash == cast.optimizer.state_hash() or STEPS % every


@pytest.mark.parametrize("every", [0, 1], ids=["no checkpoint", "a checkpoint a step"])
@pytest.mark.parametrize("point", POINTS)
def test_a_core_that_is_killed_at_each_point_of_a_step_leaves_the_same_bits(staged: Staged, point: str, every: int) -> None:
    if (point == "checkpointed" and not every) or point == "read":
        return  # nothing to be read: the core is alone
    expected = run(staged(every), STEPS)
    cast = staged(every)
    run(cast, 1)
    cast.open_step()
    if point in ("opened", "sealed"):
        said = Sealed if point == "sealed" else StepOpened
        cast.until(lambda: len(cast.events(said)) == 2, cast.move_core)
    else:
        die_at(cast, point)
    cast.next_core()
    assert run(cast, STEPS) == expected


@pytest.mark.parametrize(
    ("origin", "message"),
    [(Origin("m", "float32", "other"), "another config"), (Origin("other", "float32", "c"), "another model")],
)
def test_a_checkpoint_of_something_else_is_an_error_before_any_weights_change(
    staged: Staged, origin: Origin, message: str
) -> None:
    cast = staged(1)
    cast.core._publisher._origin = Origin("m", "float32", "c")
    run(cast, 2)
    replica = WavyReplica()
    before = replica.weights_hash()
    optimizer = AdamW(replica.parameters)
    state = optimizer.state_hash()
    with pytest.raises(OfSomethingElse, match=f"the checkpoint of step 2 is of {message}"):
        recover(cast.settings("c0"), cast.log, replica, optimizer, origin)  # type: ignore[arg-type]
    assert (replica.weights_hash(), optimizer.state_hash(), replica.version) == (before, state, 0)


class Misread(AdamW):
    """Restores one update more than was stored."""

    def restore(self, url: str) -> None:
        super().restore(url)
        self._number += 1


def test_an_optimizer_that_is_not_what_was_stored_is_an_error(staged: Staged) -> None:
    """Every file has its bytes, and what is made of them is something else."""
    cast = staged(1)
    run(cast, 2)
    replica = WavyReplica()
    with pytest.raises(
        CheckpointError, match="the optimizer's state of the checkpoint of step 2 reads as .*: move the checkpoint"
    ):
        recover(cast.settings("c0"), cast.log, replica, Misread(replica.parameters))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("damage", "wrong"),
    [
        ("truncated weights", "/step-00000002/model.safetensors is damaged: its hash is not the manifest's"),
        ("truncated state", "/step-00000002/optimizer/__0_0.distcp is damaged: its hash is not the manifest's"),
        ("no manifest", " holds no checkpoint of step 2; it has [1]"),
        ("no hashes", "/step-00000002/manifest.json is damaged: it has no sha256, position, weights, state, data, origin"),
        ("other weights", " holds other weights for step 2 than the ledger says"),
    ],
)
def test_a_checkpoint_that_cannot_be_used_gives_way_to_an_older_one(staged: Staged, damage: str, wrong: str) -> None:
    """Step 2 is made again after step 1: the bits are the same. The ledger says so, once."""
    expected = run(staged(1), STEPS)
    cast = staged(1)
    run(cast, 2)
    folder = Path(cast.url.removeprefix("file://")) / "step-00000002"
    part = folder / ("model.safetensors" if damage == "truncated weights" else "optimizer/__0_0.distcp")
    if damage == "no manifest":
        (folder / "manifest.json").unlink()
    elif damage == "no hashes":
        (folder / "manifest.json").write_text('{"format": 2, "step": 2}')
    elif damage == "other weights":
        other = staged(1, hyper=Hyper(lr=0.01))
        run(other, 2)
        shutil.rmtree(folder)
        shutil.copytree(Path(other.url.removeprefix("file://")) / "step-00000002", folder)
    else:
        part.write_bytes(part.read_bytes()[:-8])
    cast.next_core()
    (event,) = cast.events(CheckpointPassedOver)
    assert (event.core_epoch, event.step, event.instead) == (2, 2, 1)  # type: ignore[attr-defined]
    assert event.reason.endswith(wrong)  # type: ignore[attr-defined]
    if damage == "other weights":
        with pytest.raises(OfSomethingElse, match="holds another checkpoint of step 2; move it away first"):
            run(cast, STEPS)
        shutil.rmtree(folder)
        cast.next_core()
    assert run(cast, STEPS) == expected


def test_where_no_checkpoint_can_be_used_each_is_named_and_the_initial_weights_are_taken(staged: Staged) -> None:
    expected = run(staged(1), STEPS)
    cast = staged(1)
    run(cast, 2)
    shutil.rmtree(cast.url.removeprefix("file://"))
    cast.next_core()
    events = cast.events(CheckpointPassedOver)
    assert [(e.step, e.instead) for e in events] == [(2, 0), (1, 0)]  # type: ignore[attr-defined]
    assert run(cast, STEPS) == expected


@pytest.mark.parametrize(("keep", "named"), [(0, [3, 2, 1]), (1, [3]), (2, [3, 2])])
def test_checkpoints_that_were_removed_in_order_are_not_named(staged: Staged, keep: int, named: list[int]) -> None:
    cast = staged(1)
    run(cast, 3)
    shutil.rmtree(cast.url.removeprefix("file://"))
    replica = WavyReplica()
    told: list[PassedOver] = []
    settings = replace(cast.settings("c0"), checkpoint_keep=keep)
    recover(settings, cast.log, replica, AdamW(replica.parameters), tell=lambda passed, _: told.append(passed))  # type: ignore[arg-type]
    assert [each.step for each in told] == named


def test_a_core_that_finds_its_checkpoint_passes_over_none(staged: Staged) -> None:
    cast = staged(1)
    run(cast, 2)
    cast.next_core()
    assert cast.events(CheckpointPassedOver) == []


def test_the_manifest_says_how_far_the_data_went(staged: Staged) -> None:
    """Two steps of one group each."""
    cast = staged(2)
    run(cast, 2)
    assert checkpoint.read(cast.url, 2).data == {"groups_consumed": 2, "groups_dispatched": 0, "draws": 0}


class PoisonedReplica(WavyReplica):
    poisoned = frozenset({"2"})


def refused(cast: Cast) -> list[StepRefused]:
    return cast.events(StepRefused)  # type: ignore[return-value]


def test_a_step_whose_gradient_is_not_finite_is_skipped_where_the_config_says_so(
    staged: Staged, caplog: pytest.LogCaptureFixture
) -> None:
    """Step 2 leaves weights, optimizer and its schedule as they were: the steps after it are those of a run without it."""
    skips = Hyper(**{**{f: getattr(HYPER, f) for f in HYPER.__slots__}, "nonfinite": "skip"})
    cast = staged(0, replica=PoisonedReplica, hyper=skips)
    found = run(cast, STEPS)
    assert found[1] == found[0] and len(set(found)) == STEPS - 1
    (event,) = refused(cast)
    assert (event.step, event.outcome, event.cells, event.micro_steps) == (2, "skip", ("c0",), (f"m2.{POISON}",))
    commits = cast.events(StepCommitted)
    assert [c.grad_norm is None for c in commits] == [False, True, False, False]  # type: ignore[attr-defined]
    assert [c.metrics.get("skipped", 0.0) for c in commits] == [0.0, 1.0, 0.0, 0.0]  # type: ignore[attr-defined]
    assert f"the gradient is not finite since micro-step m2.{POISON}, of e" in caplog.text
    assert "step 2: the gradients of c0 (since micro-step m2.3) are not finite" in caplog.text
    cast.next_core()
    assert cast.core._publisher.weights_hash == found[-1]


def test_a_skipped_step_is_replayed_as_skipped(staged: Staged) -> None:
    skips = Hyper(**{**{f: getattr(HYPER, f) for f in HYPER.__slots__}, "nonfinite": "skip"})
    cast = staged(0, replica=PoisonedReplica, hyper=skips)
    found = run(cast, STEPS)
    events = [r.event for r in cast.log.read("micro-steps")]
    packs = {e.micro_step: packed(e) for e in events if isinstance(e, MicroStep)}
    replica = PoisonedReplica()
    optimizer = AdamW(replica.parameters)
    steps = history_of(r.event for r in cast.log.read("training")).steps
    assert [train_again(s, replica, optimizer, packs, LossConfig(), skips) for s in steps] == found


def test_a_step_whose_gradient_is_not_finite_stops_the_run_with_its_weights_unchanged(staged: Staged) -> None:
    """The next life of the trainer tries once more; the one after it gives up without computing."""
    cast = staged(0, replica=PoisonedReplica)
    (first,) = run(cast, 1)
    for life in (1, 2):
        cast.open_step()
        with pytest.raises(
            TrainingError, match=r"step 2: the gradients of c0 \(since micro-step m2.3\) are not finite; the weights stay"
        ) as error:
            cast.finish(2)
        assert not isinstance(error.value, DeadEnd)
        assert len(refused(cast)) == life
        cast.next_core()
        assert cast.core._publisher.weights_hash == first
    cast.role("c0", CellRole.TRAINING)
    with pytest.raises(Untrainable, match="refused 2 times and is not tried again: begin a new run"):
        cast.until(lambda: False, cast.move_core)
    assert hashes(cast) == [first]


def test_a_micro_step_beyond_the_budget_is_refused_before_any_gradient(staged: Staged) -> None:
    """The bench's budget and context are 100 tokens."""
    cast = staged(0)
    event = micro_step(1, 0)
    long = MicroStep(
        **{f: getattr(event, f) for f in event.__slots__}
        | {"ids": np.zeros(101, np.int32), "position": np.arange(101, dtype=np.int32), "end": np.full(101, 101, np.int32)}
    )
    opened = StepOpened(
        core_epoch=1, step=1, attempt=1, weights_hash=cast.weights_hash, groups=("g",), scores=(), micro_steps=("m1.0",),
        executions=1, divisor=1, staleness_max=0, staleness_mean=0.0,
    )  # fmt: skip
    cast.log.append_all([long, opened])
    with pytest.raises(Untrainable, match="micro-step m1.0 has 101 tokens, batch.micro_step_tokens is 100"):
        cast.until(lambda: False, cast.move_core)
    assert not cast.core._member._replica.gradient_buffer().any()  # type: ignore[attr-defined]


def test_a_token_beyond_the_vocabulary_is_refused() -> None:
    step = packed(micro_step(1, 5))
    largest = int(step.ids.max())
    require_trainable(step, 1, largest + 1)
    with pytest.raises(Untrainable, match=f"a token id lies outside the vocabulary of {largest}"):
        require_trainable(step, 1, largest)


@pytest.mark.parametrize(("step", "known"), [(1, "0 was published as"), (2, "1 was committed with")])
def test_a_step_on_weights_that_nobody_knows_is_refused_before_any_gradient(staged: Staged, step: int, known: str) -> None:
    """Those of the step before, or of the first publication where there is none."""
    cast = staged(0)
    run(cast, step - 1)
    opened = StepOpened(
        core_epoch=1, step=step, attempt=1, weights_hash="f" * 64, groups=("g",), scores=(), micro_steps=(f"m{step}.0",),
        executions=1, divisor=1, staleness_max=0, staleness_mean=0.0,
    )  # fmt: skip
    cast.log.append_all([micro_step(step, 0), opened])
    with pytest.raises(
        TrainingError, match=f"step {step} was opened on weights ffffffffffffffff, which nobody knows: .* {known}"
    ) as error:
        cast.until(lambda: False, cast.move_core)
    assert not isinstance(error.value, DeadEnd)  # the next core opens the step anew

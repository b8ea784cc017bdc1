"""Trainers on a log in memory: what is summed is what the ledger says, whoever joins late, leaves early or dies.

The replica here is a ledger of its own: accumulating micro-step k adds 2**k to the buffer, so the merged sum names exactly which
micro-steps were counted, and how often.
"""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from consumers.trainer.board import CORE_TOPICS, LEDGER_TOPICS, Board
from consumers.trainer.core import Core
from consumers.trainer.member import StepMember
from consumers.trainer.pen import Pen
from consumers.trainer.publisher import Publisher
from consumers.trainer.settings import TrainerSettings
from gyre_engine.batching import PackedMicroStep
from gyre_engine.batching.step_inputs import Packing
from gyre_engine.events.bursts import BeginBurst
from gyre_engine.events.cells import CellRole, CellStarted, RoleChanged, SchedulerElected
from gyre_engine.events.executions import Dispatched
from gyre_engine.events.training import (
    Checkpointed,
    CoreElected,
    EvaluationReported,
    GroupAdmitted,
    MicroStep,
    Published,
    Sealed,
    StepCommitted,
    StepOpened,
)
from gyre_engine.log.election import Deposed
from gyre_engine.log.memory import MemoryLog, MemoryStore
from gyre_engine.losses.config import LossConfig
from gyre_engine.scheduling.classes import ClassPlan
from gyre_engine.training import checkpoint
from gyre_engine.training.metrics import StepMetrics, UpdateMetrics
from gyre_engine.training.replica import Hyper
from gyre_engine.transfer.tcp import TcpTransfer

MICRO_STEPS = 6


class CountingReplica:
    """Adds 2**ids[0] for every micro-step."""

    def __init__(self) -> None:
        self.version = 0
        self.weights = np.zeros(1, dtype=np.float32)
        self._buffer = np.zeros(1, dtype=np.float32)

    def load(self, image: bytes | Path, version: int) -> None:
        """A path: the initial weights."""
        self.weights = np.zeros(1, np.float32) if isinstance(image, Path) else np.frombuffer(image, dtype=np.float32).copy()
        self.version = version

    def accumulate(self, step: PackedMicroStep, loss: LossConfig) -> StepMetrics:
        self._buffer += np.float32(2 ** int(step.ids[0]))
        return StepMetrics(tokens=step.tokens, targets=step.targets)

    def zero(self) -> None:
        self._buffer[:] = 0

    def gradient_buffer(self) -> NDArray[np.float32]:
        return self._buffer

    def finite(self) -> bool:
        return bool(np.isfinite(self._buffer).all())

    def logprobs(self, ids: NDArray[np.int32], *, temperature: float | None = None) -> NDArray[np.float32]:
        return np.zeros(len(ids) - 1, dtype=np.float32)

    def export(self) -> bytes:
        return self.weights.tobytes()

    def weights_hash(self) -> str:
        return hashlib.sha256(self.export()).hexdigest()


class CountingOptimizer:
    def __init__(self, replica: CountingReplica) -> None:
        self._replica = replica
        self.sums: list[float] = []

    def apply(self, gradient_sum: NDArray[np.float32], divisor: int, hyper: Hyper) -> UpdateMetrics:
        self.sums.append(float(gradient_sum[0]))
        self._replica.weights = self._replica.weights + gradient_sum
        return UpdateMetrics(1, 0.0, 1.0, 0.0)

    def state_hash(self) -> str:
        return "of no state"

    def save(self, url: str) -> None: ...

    def restore(self, url: str) -> None: ...


class Bench:
    """A core and two satellites on one memory log, moved by hand; what they train with, and how, may be another's."""

    replica_of: Any = CountingReplica
    optimizer_of: Any = CountingOptimizer
    hyper = Hyper()

    def __init__(self, tmp_path: object, checkpoint_every: int = 0, checkpoint_keep: int = 0) -> None:
        self.every, self.keep = checkpoint_every, checkpoint_keep
        self.store = MemoryStore()
        self.log = MemoryLog(self.store, "r")
        self.transfers: list[TcpTransfer] = []
        self.url = f"file://{tmp_path}"
        self.core_board, self.core, self.optimizer = self._core()
        self.satellites = {name: self.satellite(name) for name in ("c1", "c2")}

    def settings(self, cell: str) -> TrainerSettings:
        return TrainerSettings(
            cell=cell, core=cell == "c0", holder=cell, model_path="", plan=ClassPlan(1, 1, 0, 9), packing=Packing(100, 100),
            lease_s=5.0, checkpoint_url=self.url, checkpoint_every=self.every,
            checkpoint_keep=self.keep, hyper=self.hyper,
        )  # fmt: skip

    def _member(self, cell: str) -> tuple[Board, Pen, CountingReplica, TcpTransfer, StepMember]:
        board, replica, transfer = Board(cell), self.replica_of(), TcpTransfer()
        self.transfers.append(transfer)
        pen = Pen(self.log, board, 5.0)
        return board, pen, replica, transfer, StepMember(self.settings(cell), pen, board, replica, transfer)

    def _core(self) -> tuple[Board, Core, CountingOptimizer]:
        board, pen, replica, transfer, member = self._member("c0")
        self._core_follower = self.log.follow(CORE_TOPICS)
        optimizer = self.optimizer_of(replica)
        publisher = Publisher(pen, replica, optimizer, transfer, {})
        pen.write([CoreElected(core_epoch=1, holder="c0", cell="c0")])
        member.holds(0)
        publisher.export()
        publisher.publish(1, 0, [])
        self.weights_hash = publisher.weights_hash
        return board, Core(self.settings("c0"), 1, pen, board, optimizer, transfer, member, publisher), optimizer

    def satellite(self, cell: str) -> Callable[[], bool]:
        board, _, _, transfer, member = self._member(cell)
        follower = self.log.follow(LEDGER_TOPICS)

        def move() -> bool:
            for record in follower.poll(0.0):
                board.see(record)
            return member.advance(may_seal=True)

        move.transfer = transfer  # type: ignore[attr-defined]
        return move

    def move_core(self) -> bool:
        for record in self._core_follower.poll(0.0):
            self.core_board.see(record)
        return self.core.advance()

    def role(self, cell: str, role: CellRole) -> None:
        started = CellStarted(
            cell=cell, position=int(cell[1:]), incarnation="i", engine="native", engine_url="", capacity=8,
            role=CellRole.SAMPLING, weight_version=0,
        )  # fmt: skip
        changed = RoleChanged(cell=cell, incarnation="i", role=role, command_epoch=1, command_number=1)
        self.log.append_all([started, changed])

    def open_step(self) -> None:
        step = self.core_board.ledger.step + 1
        events = [micro_step(step, k) for k in range(MICRO_STEPS)]
        opened = StepOpened(
            core_epoch=1, step=step, attempt=1, weights_hash=self.weights_hash, groups=(f"g{step}",), scores=(),
            micro_steps=tuple(e.micro_step for e in events), executions=1, divisor=1, staleness_max=0, staleness_mean=0.0,
        )  # fmt: skip
        self.log.append_all([*events, opened])

    def until(self, done: Callable[[], bool], *movers: Callable[[], bool], limit: int = 400) -> None:
        for _ in range(limit):
            for mover in movers:
                mover()
            if done():
                return
        raise AssertionError("the trainers came to no end")

    @property
    def committed(self) -> int:
        return self.core_board.ledger.step

    def events(self, kind: type) -> list[object]:
        return [r.event for r in self.log.read("training") if isinstance(r.event, kind)]

    def close(self) -> None:
        for transfer in self.transfers:
            transfer.close()


def micro_step(step: int, k: int) -> MicroStep:
    ints, floats = np.array([k, 0], dtype=np.int32), np.zeros(1, dtype=np.float32)
    one = np.array([1], dtype=np.int32)
    return MicroStep(
        micro_step=f"m{step}.{k}", step=step, index=k, groups=("g",), ids=ints, position=np.arange(2, dtype=np.int32),
        end=np.array([2, 2], dtype=np.int32), src=one - 1, dst=one, logprobs=floats, versions=one - 1,
        weight=np.zeros(1), sequence=one - 1, executions=(("e", 0, 1),),
    )  # fmt: skip


@pytest.fixture
def bench(tmp_path: object):  # type: ignore[no-untyped-def]
    made = Bench(tmp_path)
    yield made
    made.close()


ALL = float(2**MICRO_STEPS - 1)


def test_three_cells_share_a_step_and_each_micro_step_counts_once(bench: Bench) -> None:
    for cell in ("c0", "c1", "c2"):
        bench.role(cell, CellRole.TRAINING)
    bench.move_core()
    bench.open_step()
    bench.until(lambda: bench.committed == 1, *bench.satellites.values(), bench.move_core)
    assert bench.optimizer.sums == [ALL]
    (commit,) = bench.events(StepCommitted)
    assert isinstance(commit, StepCommitted)
    assert {cell for cell, _ in commit.merge_order} >= {"c1", "c2"}


def test_a_satellite_that_leaves_in_the_middle_seals_what_it_has_done(bench: Bench) -> None:
    for cell in ("c0", "c1"):
        bench.role(cell, CellRole.TRAINING)
    bench.move_core()
    bench.open_step()
    c1 = bench.satellites["c1"]
    for _ in range(4):
        c1()
    bench.role("c1", CellRole.SAMPLING)
    bench.until(lambda: bool(bench.events(Sealed)), c1)
    (seal,) = bench.events(Sealed)
    assert isinstance(seal, Sealed)
    assert 0 < len(seal.micro_steps) < MICRO_STEPS
    bench.until(lambda: bench.committed == 1, bench.move_core)
    assert bench.optimizer.sums == [ALL]


def test_a_sealed_buffer_whose_owner_died_is_computed_again(bench: Bench) -> None:
    for cell in ("c0", "c1"):
        bench.role(cell, CellRole.TRAINING)
    bench.move_core()
    bench.open_step()
    c1 = bench.satellites["c1"]
    bench.until(lambda: bool(bench.events(Sealed)), c1)
    bench.transfers.remove(c1.transfer)  # type: ignore[attr-defined]
    c1.transfer.close()  # type: ignore[attr-defined]
    bench.until(lambda: bench.committed == 1, bench.move_core)
    assert bench.optimizer.sums == [ALL]
    (commit,) = bench.events(StepCommitted)
    assert isinstance(commit, StepCommitted)
    assert [cell for cell, _ in commit.merge_order] == ["c0"]


def test_a_satellite_killed_between_claim_and_seal_loses_nothing(bench: Bench) -> None:
    for cell in ("c0", "c1"):
        bench.role(cell, CellRole.TRAINING)
    bench.move_core()
    bench.open_step()
    c1 = bench.satellites["c1"]
    for _ in range(4):
        c1()
    second_life = bench.satellite("c1")
    bench.until(lambda: bench.committed == 1, second_life, bench.move_core)
    assert bench.optimizer.sums == [ALL]


def test_steps_follow_each_other_with_satellites_that_pull_each_version(bench: Bench) -> None:
    for cell in ("c0", "c1"):
        bench.role(cell, CellRole.TRAINING)
    bench.move_core()
    for step in (1, 2, 3):
        bench.weights_hash = bench.core_board.ledger.published.weights_hash if bench.core_board.ledger.published else ""
        bench.open_step()
        bench.until(lambda step=step: bench.committed == step, bench.satellites["c1"], bench.move_core)  # type: ignore[misc]
        bench.until(lambda step=step: step in bench.core_board.published, bench.move_core)  # type: ignore[misc]
    assert bench.optimizer.sums == [ALL] * 3


def admitted(number: int) -> GroupAdmitted:
    """Nothing in it trains: its step is empty."""
    return GroupAdmitted(
        group=f"g{number}", group_number=number, class_number=number, query="q", dispatched_version=number, mean=0.0,
        deviation=0.0, trains=False, reason="zero-variance", executions=(), left_out=(),
    )  # fmt: skip


def begin(step: int, epoch: int) -> BeginBurst:
    return BeginBurst(epoch=epoch, number=step + 1, step=step, reason="", water_level=0, sampling_capacity=0)


def test_the_core_opens_a_burst_only_when_the_scheduler_lets_it_begin(bench: Bench) -> None:
    """mu is 1: each step is a burst. A deposed scheduler lets nothing begin."""
    bench.role("c0", CellRole.TRAINING)
    bench.log.append_all([admitted(0), admitted(1), SchedulerElected(epoch=2, holder="s"), begin(0, epoch=1)])

    def opened() -> list[int]:
        for _ in range(20):
            bench.move_core()
        return [event.step for event in bench.events(StepOpened)]  # type: ignore[attr-defined]

    assert opened() == []
    bench.log.append_all([begin(0, epoch=2)])
    assert opened() == [1]
    assert bench.committed == 1
    bench.log.append_all([begin(1, epoch=2)])
    assert opened() == [1, 2]


def test_nothing_is_published_while_an_evaluation_samples_with_the_version_before(bench: Bench) -> None:
    bench.role("c0", CellRole.TRAINING)
    bench.log.append_all(
        [
            Dispatched(
                execution="v000-val-0001.0.0", group="v000-val-0001", index=0, attempt=0, group_size=1, group_number=0,
                class_number=0, query="q", source="s", split="val", harness="mini", weight_version=0, evaluation="v000-val",
            )
        ]
    )  # fmt: skip
    bench.move_core()
    bench.open_step()
    bench.until(lambda: bench.committed == 1, bench.move_core)
    for _ in range(20):
        bench.move_core()
    assert [p.version for p in bench.events(Published)] == [0]  # type: ignore[attr-defined]
    report = EvaluationReported(evaluation="v000-val", split="val", version=0, episodes=1, failed=0, mean=0.0, low=0.0, high=0.0)
    bench.log.append_all([report])
    bench.until(lambda: 1 in bench.core_board.published, bench.move_core)


@pytest.fixture
def keeping_one(tmp_path: object):  # type: ignore[no-untyped-def]
    """A core that stores every version and keeps the newest checkpoint."""
    made = Bench(tmp_path, checkpoint_every=1, checkpoint_keep=1)
    made.role("c0", CellRole.TRAINING)
    made.move_core()
    yield made
    made.close()


def train_until(bench: Bench, version: int) -> None:
    bench.weights_hash = bench.core_board.ledger.published.weights_hash if bench.core_board.ledger.published else ""
    bench.open_step()
    bench.until(lambda: bench.committed == version, bench.move_core)


def test_an_older_checkpoint_goes_once_the_newer_one_is_on_the_ledger(keeping_one: Bench) -> None:
    for version in (1, 2, 3):
        train_until(keeping_one, version)
        keeping_one.until(lambda: not keeping_one.move_core(), limit=9)
        assert checkpoint.steps(keeping_one.url) == [version]


def test_publication_waits_for_no_checkpoint(keeping_one: Bench) -> None:
    train_until(keeping_one, 1)
    keeping_one.until(lambda: not keeping_one.move_core(), limit=9)
    events = [r.event for r in keeping_one.log.read("training")]
    assert [type(e) for e in events if isinstance(e, StepCommitted | Checkpointed) or (isinstance(e, Published) and e.version)] == [
        StepCommitted, Published, Checkpointed,
    ]  # fmt: skip


def test_a_core_that_was_deposed_removes_no_checkpoint(keeping_one: Bench) -> None:
    """The next core comes between the commit of version 2 and its checkpoint: to a recovery version 1 is the newest one."""
    train_until(keeping_one, 1)
    keeping_one.until(lambda: checkpoint.steps(keeping_one.url) == [1], keeping_one.move_core)
    stored = keeping_one.core._publisher.checkpoint

    def elected_meanwhile(*given: object) -> None:
        keeping_one.log.append_all([CoreElected(core_epoch=2, holder="another", cell="c0")])
        stored(*given)  # type: ignore[arg-type]

    keeping_one.core._publisher.checkpoint = elected_meanwhile  # type: ignore[method-assign]
    with pytest.raises(Deposed):
        train_until(keeping_one, 2)
        keeping_one.until(lambda: False, keeping_one.move_core)
    assert checkpoint.steps(keeping_one.url) == [1, 2]


def test_a_checkpoint_that_does_not_read_back_keeps_the_older_one(keeping_one: Bench, tmp_path: Path) -> None:
    train_until(keeping_one, 1)
    keeping_one.until(lambda: checkpoint.steps(keeping_one.url) == [1], keeping_one.move_core)
    keeping_one.weights_hash = keeping_one.core_board.published[1].weights_hash
    keeping_one.open_step()
    keeping_one.until(lambda: checkpoint.steps(keeping_one.url) == [1, 2], keeping_one.move_core)
    (tmp_path / "step-00000002" / "model.safetensors").write_bytes(b"\0\0\0\0")
    keeping_one.until(lambda: not keeping_one.move_core(), limit=9)
    assert checkpoint.steps(keeping_one.url) == [1, 2]

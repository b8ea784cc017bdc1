"""The core's update: sum sealed gradient buffers in ledger order, divide, update, hash. The same code trains live and replays.

promises  equal buffers in equal order give equal weights, byte for byte
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gyre_engine.batching import PackedMicroStep
from gyre_engine.losses.config import LossConfig
from gyre_engine.training.metrics import StepMetrics, UpdateMetrics
from gyre_engine.training.replica import Hyper, NonFiniteGradient, Optimizer, TrainingReplica


class ReplayDiverged(RuntimeError):
    """A recomputed buffer or weight hash is not the logged one; the text names the step and the member."""


@dataclass(frozen=True, slots=True)
class SealedWork:
    """One member's part of a step, as the ledger has it."""

    cell: str
    micro_steps: tuple[str, ...]
    buffer_hash: str


def buffer_hash(buffer: NDArray[np.float32]) -> str:
    """sha256 of the buffer's bytes, hex."""
    return hashlib.sha256(np.ascontiguousarray(buffer, dtype="<f4").tobytes()).hexdigest()


def merge(buffers: Iterable[NDArray[np.float32]]) -> NDArray[np.float32] | None:
    """The sum of the members' buffers in the given order, float32; None where there is none."""
    total: NDArray[np.float32] | None = None
    for buffer in buffers:
        total = buffer.astype(np.float32, copy=True) if total is None else np.add(total, buffer, out=total)
    return total


def update(optimizer: Optimizer, gradient: NDArray[np.float32] | None, divisor: int, hyper: Hyper) -> UpdateMetrics | None:
    """One optimizer update by the sum over `divisor`; None (weights stay) where nothing trains in this step.

    Raises NonFiniteGradient where the sum is not finite; where `hyper` says to skip, weights stay and the metrics say so.
    """
    if gradient is None or divisor == 0:
        return None
    try:
        return optimizer.apply(gradient, divisor, hyper)
    except NonFiniteGradient:
        if hyper.nonfinite != "skip":
            raise
        return UpdateMetrics(0, 0.0, 0.0, 0.0, skipped=True)


def accumulate(
    replica: TrainingReplica, packs: Sequence[PackedMicroStep], loss: LossConfig
) -> tuple[NDArray[np.float32], StepMetrics]:
    """The gradient buffer of these micro-steps in this order, copied, and what they did."""
    replica.zero()
    metrics = StepMetrics()
    for pack in packs:
        metrics = metrics + replica.accumulate(pack, loss)
    return replica.gradient_buffer().copy(), metrics


def recompute(
    replica: TrainingReplica,
    works: Sequence[SealedWork],
    pack_of: Callable[[str], PackedMicroStep],
    loss: LossConfig,
    *,
    check: bool,
    step: int,
) -> NDArray[np.float32] | None:
    """The merged gradient of a logged step. `check`: raises ReplayDiverged where a member's buffer differs from its seal."""
    buffers = []
    for work in works:
        buffer, _ = accumulate(replica, [pack_of(m) for m in work.micro_steps], loss)
        if check and (found := buffer_hash(buffer)) != work.buffer_hash:
            raise ReplayDiverged(
                f"step {step}: the gradients of {work.cell} ({len(work.micro_steps)} micro-steps) hash to {found[:16]}, "
                f"the ledger says {work.buffer_hash[:16]}"
            )
        buffers.append(buffer)
    return merge(buffers)

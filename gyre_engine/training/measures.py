"""What a micro-step measured, as sums that add up over micro-steps and cells."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from gyre_engine.batching.microstep import PackedMicroStep
from gyre_engine.losses.policy import PolicyLoss
from gyre_engine.training.replica import Drift, StepMetrics


def step_metrics(step: PackedMicroStep, version: int, result: PolicyLoss, log_ratio: Tensor, entropy: float) -> StepMetrics:
    """log_ratio: current - behaviour of each target; staleness: `version` less the target's."""
    staleness = version - step.versions
    drift = {
        int(value): _drift(log_ratio[torch.from_numpy(np.flatnonzero(staleness == value))]) for value in np.unique(staleness)
    }
    return StepMetrics(
        tokens=step.tokens,
        targets=step.targets,
        loss=float(result.loss.detach()),
        clipped=int(result.clipped.sum()),
        entropy_sum=entropy,
        drift=drift,
    )


def _drift(log_ratio: Tensor) -> Drift:
    ratio = log_ratio.exp()
    return Drift(len(ratio), float(ratio.sum()), float(ratio.max()), float(log_ratio.abs().sum()))

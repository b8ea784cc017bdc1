"""Measuring a micro-step: from the tensors of its loss to the record that `metrics` defines. The one of the two with torch."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from gyre_engine.batching.microstep import PackedMicroStep
from gyre_engine.losses.config import Entropy, LossConfig
from gyre_engine.losses.policy import PolicyLoss
from gyre_engine.training.metrics import ABOVE, BELOW, Drift, StepMetrics, Tails


def step_metrics(step: PackedMicroStep, version: int, result: PolicyLoss, log_ratio: Tensor, loss: LossConfig) -> StepMetrics:
    """log_ratio: current - behaviour of each target, without gradient; staleness: `version` less the target's."""
    staleness, exact = version - step.versions, log_ratio.double()
    drift = {
        int(value): _drift(log_ratio[torch.from_numpy(np.flatnonzero(staleness == value))]) for value in np.unique(staleness)
    }
    return StepMetrics(
        tokens=step.tokens,
        targets=step.targets,
        loss=float(result.loss.detach()),
        policy_loss=float(result.policy),
        kl_loss=float(result.kl),
        entropy_loss=float(result.entropy),
        clipped=int(result.clipped.sum()),
        entropy_sum=float(result.entropy_sum),
        entropy_targets=0 if loss.entropy_use is Entropy.NONE else step.targets,
        kl_sum=float(result.kl_sum),
        kl_targets=step.targets if loss.kl else 0,
        moved_sum=float((exact.expm1() - exact).sum()),
        tails=_tails(exact.exp()),
        drift=drift,
    )


def _drift(log_ratio: Tensor) -> Drift:
    ratio = log_ratio.exp()
    return Drift(len(ratio), float(ratio.sum()), float(ratio.max()), float(log_ratio.abs().sum()))


def _tails(ratio: Tensor) -> Tails:
    if not len(ratio):
        return Tails()
    return Tails(
        tuple(int((ratio > bound).sum()) for bound in ABOVE),
        tuple(int((ratio < bound).sum()) for bound in BELOW),
        float(ratio.max()),
    )

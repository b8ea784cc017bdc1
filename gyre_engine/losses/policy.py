"""Policy losses by name. Needs torch: imported by trainers only.

Every loss is a function of the log-ratio `l = current - behaviour` of each target and of its weight `w`, which carries
the advantage. The behaviour log-probability is the engine's, so `r = exp(l)` corrects staleness and the gap between
engine and trainer at once. The result is a sum over targets, never divided: the core divides when the step closes.

ppo        w * clip(r), pessimistic: for w > 0 min(r, 1 + clip_high), for w < 0 max(r, 1 - clip_low); beyond the clip
           the gradient is 0. PPO leaves r unbounded where w < 0: there the importance weight is truncated, so a
           target's gradient is w * min(r, cap) * grad(current): capped, not dropped.
grpo       the same with clip_low on both sides and no cap.
reinforce  w * min(r, cap) * current, the importance weight held constant and truncated.
gspo       ppo's clip on one ratio a trajectory, exp(mean of l over its targets), no cap.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from gyre_engine.losses.config import LossConfig


@dataclass(frozen=True, slots=True)
class Targets:
    """What a loss sees of m targets: weight float[m] (advantage x share), sequence int64[m] (trajectory, from 0)."""

    weight: Tensor
    sequence: Tensor


@dataclass(frozen=True, slots=True)
class PolicyLoss:
    """loss: scalar sum, to be minimized; clipped: bool[m], the targets whose gradient the clip removed."""

    loss: Tensor
    clipped: Tensor


PolicyLossFunction = Callable[[Tensor, Targets, LossConfig], PolicyLoss]


def policy_loss(current: Tensor, behaviour: Tensor, targets: Targets, config: LossConfig) -> PolicyLoss:
    """The loss `config.name` of float[m] current (with gradient) and behaviour log-probabilities."""
    return LOSSES[config.name](current - behaviour, targets, config)


def ppo(log_ratio: Tensor, targets: Targets, config: LossConfig) -> PolicyLoss:
    ratio = log_ratio.exp()
    truncation = (config.cap / ratio.detach()).clamp(max=1.0)
    return _clipped(ratio, truncation, targets.weight, config.clip_low, config.clip_high)


def grpo(log_ratio: Tensor, targets: Targets, config: LossConfig) -> PolicyLoss:
    ratio = log_ratio.exp()
    return _clipped(ratio, torch.ones_like(ratio), targets.weight, config.clip_low, config.clip_low)


def gspo(log_ratio: Tensor, targets: Targets, config: LossConfig) -> PolicyLoss:
    count = torch.bincount(targets.sequence).to(log_ratio.dtype)
    mean = torch.zeros_like(count).index_add(0, targets.sequence, log_ratio) / count
    ratio = mean.exp()[targets.sequence]
    return _clipped(ratio, torch.ones_like(ratio), targets.weight, config.clip_low, config.clip_high)


def reinforce(log_ratio: Tensor, targets: Targets, config: LossConfig) -> PolicyLoss:
    importance = log_ratio.detach().exp().clamp(max=config.cap)
    return PolicyLoss(-(targets.weight * importance * log_ratio).sum(), torch.zeros_like(log_ratio, dtype=torch.bool))


def _clipped(ratio: Tensor, truncation: Tensor, weight: Tensor, low: float, high: float) -> PolicyLoss:
    above = (ratio > 1 + high) & (weight > 0)
    below = (ratio < 1 - low) & (weight < 0)
    clipped = above | below
    surrogate = torch.where(clipped, ratio.detach().clamp(1 - low, 1 + high), ratio * truncation)
    return PolicyLoss(-(weight * surrogate).sum(), clipped)


LOSSES: dict[str, PolicyLossFunction] = {"ppo": ppo, "grpo": grpo, "reinforce": reinforce, "gspo": gspo}

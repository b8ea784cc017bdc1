"""Policy losses by name: one small function each, with its formula and where it comes from. Needs torch.

Notation, for a target t: w its weight (advantage x share), r = exp(current - behaviour), sg(.) without gradient, and
clip(r) = min(r, 1 + high) where w > 0, max(r, 1 - low) where w < 0: the pessimistic of r and its clipped value. Each loss is a sum
over targets. The papers' means and normalizers are not here: they are `loss.aggregate` and `group.scale` (docs/losses.md).

The behaviour's log-probabilities are the engine's, so r corrects at once what weights have changed since and what engine and
trainer compute differently.
"""

from __future__ import annotations

import torch
from torch import Tensor

from gyre_engine.losses.config import LossConfig
from gyre_engine.losses.targets import LossFunction, Surrogate, Targets

LARGEST_EXPONENT = 20.0
"""A ratio beyond e^20 counts as e^20, so that one target that the engine held for impossible gives no infinity."""


def ppo(current: Tensor, targets: Targets, config: LossConfig) -> Surrogate:
    """PPO-clip with a truncated importance weight.

    -sum w clip(r); where the clip leaves r unbounded, the gradient is that of w min(r, cap) log pi: capped, not dropped.
    Schulman et al. 2017, arXiv:1707.06347, eq. 7, with two bounds as in DAPO; truncation: Espeholt et al. 2018, arXiv:1802.01561
    (rho-bar), between engine and trainer as Yao et al. 2025, "Your Efficient RL Framework Secretly Brings You Off-Policy RL Training".
    """
    ratio = bounded_exp(current - targets.behaviour)
    truncation = (config.cap / ratio.detach()).clamp(max=1.0)
    return _clipped(ratio, truncation, targets.weight, config.clip_low, config.clip_high)


def grpo(current: Tensor, targets: Targets, config: LossConfig) -> Surrogate:
    """-sum w clip(r), with `clip_low` on both sides. Shao et al. 2024 (DeepSeekMath), arXiv:2402.03300, eq. 3; its KL is `loss.kl`."""
    ratio = bounded_exp(current - targets.behaviour)
    return _clipped(ratio, torch.ones_like(ratio), targets.weight, config.clip_low, config.clip_low)


def dr_grpo(current: Tensor, targets: Targets, config: LossConfig) -> Surrogate:
    """-sum w clip(r), for a token as in GRPO: what it leaves out are the divisions by a response's length and the group's deviation.

    Liu et al. 2025, arXiv:2503.20783, section 3.2: `loss.aggregate = "constant"` and `group.scale = "none"`.
    """
    return grpo(current, targets, config)


def dapo(current: Tensor, targets: Targets, config: LossConfig) -> Surrogate:
    """-sum w clip(r), with `clip_low` below and `clip_high` above. Yu et al. 2025, arXiv:2503.14476, eq. 8 (0.2 and 0.28)."""
    ratio = bounded_exp(current - targets.behaviour)
    return _clipped(ratio, torch.ones_like(ratio), targets.weight, config.clip_low, config.clip_high)


def gspo(current: Tensor, targets: Targets, config: LossConfig) -> Surrogate:
    """-sum w clip(s), with one ratio a trajectory: s = exp(mean of current - behaviour over its trained tokens).

    Zheng et al. 2025, arXiv:2507.18071, eq. 5 and 7 (there clipped at 3e-4 and 4e-4).
    """
    ratio = bounded_exp(_means(current - targets.behaviour, targets.sequence))[targets.sequence]
    return _clipped(ratio, torch.ones_like(ratio), targets.weight, config.clip_low, config.clip_high)


def cispo(current: Tensor, targets: Targets, config: LossConfig) -> Surrogate:
    """-sum w sg(clamp(r, 1 - low, 1 + high)) current: the weight is bounded and no token loses its gradient.

    Chen et al. 2025 (MiniMax-M1), arXiv:2506.13585, eq. 4 and 5; there without a lower bound, which is clip_low = 1.
    """
    ratio = bounded_exp(current - targets.behaviour).detach()
    bounded = ratio.clamp(1 - config.clip_low, 1 + config.clip_high)
    return Surrogate(-(targets.weight * bounded * current).sum(), bounded != ratio, ratio)


def decoupled_ppo(current: Tensor, targets: Targets, config: LossConfig) -> Surrogate:
    """PPO-clip against a proximal policy, weighted by how far that is from the behaviour policy.

    -sum w sg(min(exp(proximal - behaviour), cap)) clip(exp(current - proximal)).
    Hilton et al. 2021, arXiv:2110.00641, section 3; Fu et al. 2025 (AReaL), arXiv:2505.24298, section 5.2. AReaL leaves out targets
    beyond its cap; here their weight is truncated.
    """
    proximal = proximal_logprobs(current.detach(), targets.behaviour, targets.staleness)
    importance = bounded_exp(proximal - targets.behaviour)
    found = _clipped(
        bounded_exp(current - proximal),
        importance.clamp(max=config.cap),
        targets.weight,
        config.clip_low,
        config.clip_high,
        everywhere=True,
    )
    return Surrogate(found.loss, found.clipped, importance)


def proximal_logprobs(current: Tensor, behaviour: Tensor, staleness: Tensor) -> Tensor:
    """behaviour + a (current - behaviour), with a = (v_prox - v_behave) / (v_now - v_behave) and v_prox = v_now - 1: of a target
    that is d versions old, a = (d - 1) / d, and 0 for d = 0.

    Li, Wu and Shen 2025 (A-3PO), arXiv:2512.06547; as AReaL has it: docs/algorithms/prox_approx.md, "loglinear".
    """
    age = staleness.clamp(min=1).to(current.dtype)
    return behaviour + (age - 1) / age * (current - behaviour)


def reinforce(current: Tensor, targets: Targets, config: LossConfig) -> Surrogate:
    """-sum w sg(min(r, cap)) current. Williams 1992; truncated importance weight: Espeholt et al. 2018, arXiv:1802.01561."""
    ratio = bounded_exp(current - targets.behaviour).detach()
    nowhere = torch.zeros_like(ratio, dtype=torch.bool)
    return Surrogate(-(targets.weight * ratio.clamp(max=config.cap) * current).sum(), nowhere, ratio)


SURROGATES: dict[str, LossFunction] = {
    "ppo": ppo,
    "grpo": grpo,
    "dr-grpo": dr_grpo,
    "dapo": dapo,
    "gspo": gspo,
    "cispo": cispo,
    "decoupled-ppo": decoupled_ppo,
    "reinforce": reinforce,
}


def bounded_exp(exponent: Tensor) -> Tensor:
    """exp of at most LARGEST_EXPONENT; the gradient goes on beyond it, with the bounded value."""
    return torch.where(exponent > LARGEST_EXPONENT, LARGEST_EXPONENT + (exponent - exponent.detach()), exponent).exp()


def _means(values: Tensor, sequence: Tensor) -> Tensor:
    """The mean of each sequence's values."""
    count = torch.bincount(sequence).to(values.dtype)
    return torch.zeros_like(count).index_add(0, sequence, values) / count


def _clipped(ratio: Tensor, factor: Tensor, weight: Tensor, low: float, high: float, *, everywhere: bool = False) -> Surrogate:
    """-sum w clip(ratio), where the clip does not act times `factor`; `everywhere`: where it does, too."""
    clipped = ((ratio > 1 + high) & (weight > 0)) | ((ratio < 1 - low) & (weight < 0))
    bound = ratio.detach().clamp(1 - low, 1 + high)
    surrogate = torch.where(clipped, bound * factor if everywhere else bound, ratio * factor)
    return Surrogate(-(weight * surrogate).sum(), clipped, ratio.detach())

"""What may be added to a policy loss: the divergence from a reference policy, and the entropy. Needs torch.

Both are weighted by the share that `loss.aggregate` gives each target, without its advantage: an execution of advantage 0 has
them too.
"""

from __future__ import annotations

import torch
from torch import Tensor

from gyre_engine.losses.config import LossConfig
from gyre_engine.losses.names import UnusableLoss
from gyre_engine.losses.surrogates import bounded_exp
from gyre_engine.losses.targets import Targets


def kl_estimates(current: Tensor, reference: Tensor, estimator: str) -> Tensor:
    """float[m]: an estimate of KL(current policy, reference policy) from each sampled token, differentiable.

    With x = log r = reference - current: k1 = -x, k2 = x^2 / 2, k3 = exp(x) - 1 - x. J. Schulman, "Approximating KL Divergence", 2020,
    joschu.net/blog/kl-approx.html; k3 is GRPO's (arXiv:2402.03300, eq. 4).
    """
    x = reference - current
    match estimator:
        case "k1":
            return -x
        case "k2":
            return x.square() / 2
        case "k3":
            return bounded_exp(x) - 1 - x
    raise UnusableLoss(f'loss.kl_estimator has no "{estimator}"')


def kl_of(current: Tensor, targets: Targets, config: LossConfig) -> Tensor:
    """float[m]; empty where loss.kl is 0. Raises UnusableLoss where the micro-step holds no reference."""
    if not config.kl:
        return current.new_empty(0)
    if len(targets.reference) != len(current):
        raise UnusableLoss(
            f"loss.kl is {config.kl}, and this micro-step holds no log-probabilities of the reference policy: it was written without "
            "loss.kl; set it to 0, or begin a new run"
        )
    return kl_estimates(current, targets.reference, config.kl_estimator)


def shared(values: Tensor, targets: Targets, coefficient: float, name: str) -> Tensor:
    """coefficient x sum of share x value; 0 where the coefficient is. Raises UnusableLoss where the micro-step holds no shares."""
    if not coefficient:
        return torch.zeros((), dtype=targets.weight.dtype, device=targets.weight.device)
    if len(targets.share) != len(values):
        raise UnusableLoss(
            f"loss.{name} is {coefficient}, and this micro-step holds no shares of its targets: it was written by an earlier version; "
            f"set loss.{name} = 0, or begin a new run"
        )
    return coefficient * (targets.share * values).sum()

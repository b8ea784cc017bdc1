"""The whole loss of a micro-step: a policy loss by name, and the terms beside it. Needs torch: imported by trainers only."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import cast

import torch
from torch import Tensor

from gyre_engine.losses.config import LossConfig
from gyre_engine.losses.names import LossError, UnusableLoss, load_plugin
from gyre_engine.losses.surrogates import SURROGATES
from gyre_engine.losses.targets import LossFunction, Surrogate, Targets
from gyre_engine.losses.terms import kl_of, shared


@dataclass(frozen=True, slots=True)
class PolicyLoss:
    """Sums over targets, never divided. All but `loss` are without gradient.

    loss:                  scalar, to be minimized: policy + kl + entropy
    policy, kl, entropy:   its parts, scalars, as they stand in it; the entropy's is negative
    kl_sum, entropy_sum:   of the estimates and of the entropies themselves; 0 where they were not computed
    clipped, ratio:        bool[m], float[m], see `Surrogate`
    """

    loss: Tensor
    policy: Tensor
    kl: Tensor
    entropy: Tensor
    kl_sum: Tensor
    entropy_sum: Tensor
    clipped: Tensor
    ratio: Tensor


def policy_loss(current: Tensor, targets: Targets, config: LossConfig, entropy: Tensor | None = None) -> PolicyLoss:
    """The loss `config` names of float[m] current log-probabilities (with gradient).

    entropy: float[m] of the policy where each target was drawn, with gradient where loss.entropy is above 0; None: not computed.
    Raises UnusableLoss where a term needs what the targets do not have.
    """
    found = loss_function(config.name)(current, targets, config)
    estimates, entropies = kl_of(current, targets, config), current.new_empty(0) if entropy is None else entropy
    kl = shared(estimates, targets, config.kl, "kl")
    spread = -shared(entropies, targets, config.entropy, "entropy")
    loss = found.loss + kl if config.kl else found.loss
    return PolicyLoss(
        loss=loss + spread if config.entropy else loss,
        policy=found.loss.detach(),
        kl=kl.detach(),
        entropy=spread.detach(),
        kl_sum=estimates.detach().sum(),
        entropy_sum=entropies.detach().sum(),
        clipped=found.clipped,
        ratio=found.ratio,
    )


@cache
def loss_function(name: str) -> LossFunction:
    """The built-in loss, or that of an installed package. Raises LossError where that cannot be used: it is tried on two targets."""
    if name in SURROGATES:
        return SURROGATES[name]
    function = cast(LossFunction, load_plugin(name))
    _try(name, function)
    return function


def _try(name: str, function: LossFunction) -> None:
    current = torch.tensor([-1.0, -2.0], dtype=torch.float64, requires_grad=True)
    empty, ones = torch.empty(0, dtype=torch.float64), torch.ones(2, dtype=torch.float64)
    behaviour = torch.tensor([-1.1, -1.9], dtype=torch.float64)
    targets = Targets(ones, torch.tensor([0, 1]), behaviour, torch.tensor([0, 2]), ones / 2, empty)
    try:
        found = function(current, targets, LossConfig())
    except Exception as error:  # code of others: whatever it raises keeps it from being used
        raise LossError(f'loss "{name}" fails on two targets: {error!r}') from error
    if not isinstance(found, Surrogate):
        raise UnusableLoss(f'loss "{name}" must return a gyre_engine.losses.targets.Surrogate, got {type(found).__name__}')
    shapes = (found.loss.shape, found.clipped.shape, found.ratio.shape)
    if shapes != ((), (2,), (2,)):
        raise UnusableLoss(
            f'loss "{name}" must give a scalar loss, and clipped and ratio of each target: '
            f"of two targets it gave the shapes {', '.join(str(tuple(shape)) for shape in shapes)}"
        )
    if not found.loss.requires_grad:
        raise UnusableLoss(
            f'loss "{name}": its loss has no gradient with respect to `current`: compute it without detach or no_grad'
        )
    if found.ratio.requires_grad:
        raise UnusableLoss(f'loss "{name}": its ratio is told, not trained: detach it')

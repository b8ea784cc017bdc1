"""What a loss is given, and what it gives back. Needs torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from gyre_engine.losses.config import LossConfig


@dataclass(frozen=True, slots=True)
class Targets:
    """What is known of m trained tokens.

    weight:     float[m] advantage x share
    sequence:   int64[m] the selected trajectory of each, numbered from 0; all of a trajectory's targets are here
    behaviour:  float[m] log-probability under the weights that sampled it, as the engine had it
    staleness:  int64[m] weight version now less that which sampled it
    share:      float[m] of its execution, by `loss.aggregate`; empty in records of earlier versions
    reference:  float[m] log-probability under the reference policy; empty where loss.kl is 0
    """

    weight: Tensor
    sequence: Tensor
    behaviour: Tensor
    staleness: Tensor
    share: Tensor
    reference: Tensor


@dataclass(frozen=True, slots=True)
class Surrogate:
    """What a loss by name gives.

    loss:     scalar, differentiable: the sum over targets, to be minimized, never divided (the core divides when the step closes)
    clipped:  bool[m] on which targets the clip acted: their gradient is gone (cispo: their importance weight was bounded)
    ratio:    float[m] without gradient: the importance ratio before anything bounds it
    """

    loss: Tensor
    clipped: Tensor
    ratio: Tensor


LossFunction = Callable[[Tensor, Targets, LossConfig], Surrogate]
"""float[m] current log-probabilities with gradient, the targets, the constants."""

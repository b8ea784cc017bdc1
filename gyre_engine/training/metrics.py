"""The records of what micro-steps and updates measured, and how they add up. No torch.

`measures` fills them from tensors; `ledger/sums` writes them into a seal, and those of all seals into a commit.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields


def largest(*values: float) -> float:
    """Not a number where one of them is none: `max` alone tells of it only where it stands first."""
    return math.nan if any(map(math.isnan, values)) else max(values)


@dataclass(frozen=True, slots=True)
class Drift:
    """Current against behaviour policy over the targets of one staleness; sums, so that micro-steps add up.

    tokens; ratio_sum and ratio_max of exp(current - behaviour); gap_sum of |current - behaviour|
    """

    tokens: int
    ratio_sum: float
    ratio_max: float
    gap_sum: float

    def __add__(self, other: Drift) -> Drift:
        return Drift(
            self.tokens + other.tokens,
            self.ratio_sum + other.ratio_sum,
            largest(self.ratio_max, other.ratio_max),
            self.gap_sum + other.gap_sum,
        )

    @property
    def ratio_mean(self) -> float:
        return self.ratio_sum / self.tokens


ABOVE = (2.0, 5.0, 10.0)
BELOW = (0.5, 0.2, 0.1)
"""Bounds beyond which importance weights are counted."""


@dataclass(frozen=True, slots=True)
class Tails:
    """Importance weights exp(current - behaviour) far from 1: how many targets lie above each of ABOVE and below each of BELOW, and
    the largest weight."""

    above: tuple[int, ...] = (0,) * len(ABOVE)
    below: tuple[int, ...] = (0,) * len(BELOW)
    largest: float = 0.0

    def __add__(self, other: Tails) -> Tails:
        return Tails(_added(self.above, other.above), _added(self.below, other.below), largest(self.largest, other.largest))


def _added(one: tuple[int, ...], other: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(a + b for a, b in zip(one, other, strict=True))


@dataclass(frozen=True, slots=True)
class StepMetrics:
    """What one or several micro-steps did; adds up.

    tokens, targets:  packed and trained tokens
    loss:             summed loss, not divided: policy_loss + kl_loss + entropy_loss
    clipped:          targets on which the clip acted
    entropy_sum:      of the policy, over entropy_targets: those where it was measured
    kl_sum:           estimates of the divergence from the reference policy, over kl_targets: those where they were made
    moved_sum:        r - 1 - log r of each target's importance weight r: an estimate of KL(behaviour, current)
    drift:            by staleness in weight versions, version at training - version at sampling
    """

    tokens: int = 0
    targets: int = 0
    loss: float = 0.0
    policy_loss: float = 0.0
    kl_loss: float = 0.0
    entropy_loss: float = 0.0
    clipped: int = 0
    entropy_sum: float = 0.0
    entropy_targets: int = 0
    kl_sum: float = 0.0
    kl_targets: int = 0
    moved_sum: float = 0.0
    tails: Tails = Tails()
    drift: Mapping[int, Drift] = field(default_factory=dict)

    @property
    def clip_fraction(self) -> float:
        return self.clipped / self.targets if self.targets else 0.0

    def __add__(self, other: StepMetrics) -> StepMetrics:
        sums = {f.name: getattr(self, f.name) + getattr(other, f.name) for f in fields(self) if f.name != "drift"}
        drift = dict(self.drift)
        for staleness, entry in other.drift.items():
            drift[staleness] = drift[staleness] + entry if staleness in drift else entry
        return StepMetrics(**sums, drift=dict(sorted(drift.items())))


@dataclass(frozen=True, slots=True)
class UpdateMetrics:
    """One update: its number from 1, the gradient norm before clipping, what it was scaled by, the learning rate.

    skipped: the gradient was not finite, and nothing has changed; the other fields say nothing.
    """

    step: int
    grad_norm: float
    clip_scale: float
    lr: float
    skipped: bool = False

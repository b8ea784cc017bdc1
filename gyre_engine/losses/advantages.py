"""Group-relative advantages (learning.md, 6): over executions, never over branches."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class GroupAdvantages:
    """Advantages of the executions of one group, in the order given.

    advantages:     centred / max(deviation, floor x reward range), or centred (`group.scale = "none"`)
    centred:        reward - baseline
    baseline:       mean reward of the executions that count
    deviation:      population standard deviation (divided by N, not N - 1)
    zero_variance:  all rewards are equal: nothing to learn, every advantage is 0
    """

    advantages: tuple[float, ...]
    centred: tuple[float, ...]
    baseline: float
    deviation: float
    zero_variance: bool


def group_advantages(
    rewards: Sequence[float], *, reward_range: float = 1.0, floor: float = 1e-2, scale: bool = True
) -> GroupAdvantages:
    """One reward per execution that counts in the baseline; each trajectory of an execution inherits its value.

    reward_range:  largest minus smallest possible reward (> 0)
    floor:         smallest deviation divided by, as a share of the range, so that near-ties are not blown up
    scale:         False leaves the centred rewards as they are
    Raises ValueError for an empty group or a reward that is not finite.
    """
    if not rewards or not all(math.isfinite(reward) for reward in rewards):
        raise ValueError(f"a group needs at least one reward and all finite, got {list(rewards)}")
    if reward_range <= 0 or floor <= 0:
        raise ValueError(f"reward_range ({reward_range}) and floor ({floor}) must be above 0")
    if max(rewards) == min(rewards):
        zeros = (0.0,) * len(rewards)
        return GroupAdvantages(zeros, zeros, float(rewards[0]), 0.0, True)
    baseline = math.fsum(rewards) / len(rewards)
    centred = tuple(reward - baseline for reward in rewards)
    deviation = math.sqrt(math.fsum(value * value for value in centred) / len(rewards))
    divisor = max(deviation, floor * reward_range) if scale else 1.0
    return GroupAdvantages(tuple(value / divisor for value in centred), centred, baseline, deviation, False)

"""What one micro-step measures, against figures worked by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from gyre_engine.batching.microstep import PackedMicroStep
from gyre_engine.losses.config import LossConfig
from gyre_engine.losses.policy import PolicyLoss
from gyre_engine.training.measures import step_metrics
from gyre_engine.training.metrics import StepMetrics, Tails

RATIOS = [1.0, 3.0, 6.0, 12.0, 0.4, 0.15, 0.05, 2.0, 0.5]
"""Two lie on a bound: they are not beyond it."""


def micro_step(versions: list[int]) -> PackedMicroStep:
    m, ids = len(versions), np.zeros(len(versions) + 4, dtype=np.int32)
    return PackedMicroStep(
        ids, np.arange(m + 4, dtype=np.int32), np.full(m + 4, m + 4, dtype=np.int32), np.zeros(m, dtype=np.int32),
        np.ones(m, dtype=np.int32), np.zeros(m, dtype=np.float32),
        np.array(versions, dtype=np.int32), np.zeros(m), np.zeros(m, dtype=np.int32), (),
    )  # fmt: skip


def measured(ratios: list[float], versions: list[int], loss: LossConfig) -> StepMetrics:
    zero, clipped = torch.tensor(0.0), torch.tensor([True] + [False] * (len(ratios) - 1))[: len(ratios)]
    result = PolicyLoss(
        loss=torch.tensor(2.25), policy=torch.tensor(2.0), kl=torch.tensor(0.5), entropy=torch.tensor(-0.25), kl_sum=torch.tensor(4.0),
        entropy_sum=torch.tensor(9.0), clipped=clipped, ratio=zero,
    )  # fmt: skip
    return step_metrics(micro_step(versions), 3, result, torch.tensor(ratios, dtype=torch.float64).log(), loss)


def test_tails_are_counted_beyond_each_bound() -> None:
    found = measured(RATIOS, [3] * 9, LossConfig())
    assert found.tails.above == (3, 2, 1) and found.tails.below == (3, 2, 1)
    assert found.tails.largest == pytest.approx(12.0)


def test_how_far_the_policy_has_moved_is_summed_over_the_targets() -> None:
    """r - 1 - log r: of 1 nothing, of 2 1 - log 2, of 0.5 log 2 - 0.5."""
    found = measured([1.0, 2.0, 0.5], [3, 3, 3], LossConfig())
    assert found.moved_sum == pytest.approx((1 - math.log(2)) + (math.log(2) - 0.5))


def test_a_small_move_is_not_lost_in_rounding() -> None:
    """Of a ratio exp(1e-5) it is 1e-10 / 2 to five digits, where float32 knows 1 to seven."""
    found = measured([math.exp(1e-5)], [3], LossConfig())
    assert found.moved_sum == pytest.approx(0.5e-10, rel=1e-4)


def test_parts_and_counts() -> None:
    found = measured([1.0, 1.0], [3, 1], LossConfig(kl=0.1, entropy=0.01))
    assert (found.loss, found.policy_loss, found.kl_loss, found.entropy_loss, found.clipped) == (2.25, 2.0, 0.5, -0.25, 1)
    assert (found.kl_sum, found.kl_targets, found.entropy_sum, found.entropy_targets) == (4.0, 2, 9.0, 2)
    assert {staleness: drift.tokens for staleness, drift in found.drift.items()} == {0: 1, 2: 1}


def test_what_was_not_measured_counts_no_targets() -> None:
    found = measured([1.0], [3], LossConfig())
    assert (found.kl_targets, found.entropy_targets) == (0, 0)


def test_a_micro_step_without_targets() -> None:
    found = measured([], [], LossConfig())
    assert (found.targets, found.tails, found.moved_sum, found.drift) == (0, Tails(), 0.0, {})

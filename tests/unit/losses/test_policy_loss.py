"""Policy losses against values worked by hand."""

import math

import pytest
import torch

from gyre_engine.losses import LossConfig
from gyre_engine.losses.policy import Targets, policy_loss


def gradients(name, ratios, weights, sequence=None, **config):
    """d loss / d current for targets with the given ratios: behaviour is 0, current is log(ratio)."""
    current = torch.tensor([math.log(r) for r in ratios], dtype=torch.float64, requires_grad=True)
    numbers = torch.tensor(sequence if sequence is not None else [0] * len(ratios))
    targets = Targets(torch.tensor(weights, dtype=torch.float64), numbers)
    result = policy_loss(current, torch.zeros_like(current), targets, LossConfig(name, **config))
    result.loss.backward()
    return float(result.loss.detach()), current.grad.tolist(), result.clipped.tolist()


def test_ppo_clips_pessimistically_and_caps_what_ppo_leaves_unbounded():
    """Gradient of -w r is -w r; clipped: 0. A weight of -1 at ratio 5 is truncated to 2."""
    loss, grads, clipped = gradients("ppo", [1.0, 1.2, 1.3, 0.7, 0.7, 1.5, 5.0], [1, 1, 1, 1, -1, -1, -1])
    assert grads == pytest.approx([-1.0, -1.2, 0.0, -0.7, 0.0, 1.5, 2.0])
    assert clipped == [False, False, True, False, True, False, False]
    assert loss == pytest.approx(-1.0 - 1.2 - 1.28 - 0.7 + 0.8 + 1.5 + 2.0)


def test_grpo_clips_the_same_on_both_sides_and_has_no_cap():
    _, grads, _ = gradients("grpo", [1.25, 1.1, 5.0], [1, 1, -1])
    assert grads == pytest.approx([0.0, -1.1, 5.0])


def test_reinforce_weighs_by_the_truncated_ratio():
    _, grads, clipped = gradients("reinforce", [0.5, 1.0, 3.0], [1, -2, 1])
    assert grads == pytest.approx([-0.5, 2.0, -2.0])
    assert not any(clipped)


def test_gspo_has_one_ratio_a_trajectory():
    """Trajectory 0: ratios 1.21 and 1.0, geometric mean 1.1; trajectory 1: 1.69 and 1.0, mean 1.3, clipped."""
    _, grads, clipped = gradients("gspo", [1.21, 1.69, 1.0, 1.0], [1, 1, 1, 1], sequence=[0, 1, 0, 1])
    assert grads == pytest.approx([-1.1, 0.0, -1.1, 0.0])
    assert clipped == [False, True, False, True]


def test_an_unknown_loss_is_refused_by_name():
    with pytest.raises(ValueError, match=r'loss.name has no "ppo2"; choose one of ppo, grpo'):
        LossConfig("ppo2")

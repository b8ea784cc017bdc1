"""Advantages against hand-worked values."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gyre_engine.losses import divisor_share, group_advantages


def test_c20_the_baseline_counts_executions_and_never_branches():
    """C20: A (reward 1, 3 trajectories) and B (reward 0, 1 trajectory): baseline 0.5, centred +0.5 and -0.5."""
    group = group_advantages([1.0, 0.0])
    assert group.baseline == 0.5
    assert group.centred == (0.5, -0.5)
    assert group.advantages == (1.0, -1.0)
    assert divisor_share("two-level", 300, 3) == divisor_share("two-level", 5, 1) == 1


def test_the_deviation_is_of_the_population():
    """2, 4, 4, 4, 5, 5, 7, 9: mean 5, population deviation 2."""
    group = group_advantages([2, 4, 4, 4, 5, 5, 7, 9], reward_range=10)
    assert (group.baseline, group.deviation) == (5.0, 2.0)
    assert group.advantages == (-1.5, -0.5, -0.5, -0.5, 0.0, 0.0, 1.0, 2.0)


def test_the_deviation_has_a_floor_of_a_hundredth_of_the_range():
    """Rewards 0.500 and 0.502: deviation 0.001, below 0.01 x 1; so +-0.001 / 0.01."""
    assert group_advantages([0.5, 0.502]).advantages == pytest.approx((-0.1, 0.1))


def test_unscaled_advantages_are_centred_rewards_and_no_more():
    """Dr. GRPO: 1, 0, 0, 0 gives 0.75 and -0.25."""
    group = group_advantages([1.0, 0.0, 0.0, 0.0], scale=False)
    assert group.advantages == group.centred == (0.75, -0.25, -0.25, -0.25)
    assert group_advantages([0.5, 0.5], scale=False).zero_variance


def test_a_group_without_variance_is_flagged_and_teaches_nothing():
    group = group_advantages([0.1, 0.1, 0.1])
    assert group.zero_variance
    assert group.advantages == (0.0, 0.0, 0.0)


@pytest.mark.parametrize("rewards", [[], [1.0, math.nan], [math.inf, 0.0]])
def test_a_reward_that_is_no_number_is_refused(rewards):
    with pytest.raises(ValueError, match="finite"):
        group_advantages(rewards)


@given(st.lists(st.floats(0, 1), min_size=2, max_size=16), st.randoms())
def test_order_does_not_change_an_advantage(rewards, random):
    order = list(range(len(rewards)))
    random.shuffle(order)
    shuffled = group_advantages([rewards[index] for index in order]).advantages
    straight = group_advantages(rewards).advantages
    assert shuffled == tuple(straight[index] for index in order)

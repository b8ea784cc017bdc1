"""What loss.name, loss.aggregate and group.scale make together is the objective of the paper that docs/losses.md names.

On one group of three executions of one trajectory each, with 2, 3 and 5 trained tokens, as the papers have them.
"""

import numpy as np
import pytest
import torch

from gyre_engine.batching import ExecutionWork, Segment, pack
from gyre_engine.losses import LossConfig, divisor_share, group_advantages
from gyre_engine.losses.policy import policy_loss
from gyre_engine.losses.targets import Targets

LENGTHS, REWARDS = (2, 3, 5), (1.0, 0.0, 0.25)
LONGEST = 8
RNG = np.random.default_rng(3)
RATIOS = [np.exp(RNG.normal(0, 0.4, length)) for length in LENGTHS]


def ours(name, aggregate, scale, **config):
    """Through the same steps as a run: advantages, weights in a micro-step, the summed loss, one division at the end."""
    advantages = group_advantages(REWARDS, scale=scale == "deviation").advantages
    works = [
        ExecutionWork(
            execution=f"e{length}", segments=(Segment(np.arange(length + 1, dtype=np.int32)),),
            trained=np.arange(1, length + 1, dtype=np.int32), logprobs=np.zeros(length, np.float32),
            versions=np.zeros(length, np.int32), advantage=advantage, trained_tokens=length,
            sequences=np.zeros(length, np.int32),
        )
        for length, advantage in zip(LENGTHS, advantages, strict=True)
    ]  # fmt: skip
    (step,) = pack(works, 100, aggregate=aggregate)
    empty = torch.zeros(0, dtype=torch.float64)
    none = torch.zeros(step.targets, dtype=torch.int64)
    behaviour = torch.zeros(step.targets, dtype=torch.float64)
    targets = Targets(torch.tensor(step.weight), torch.tensor(step.sequence, dtype=torch.int64), behaviour, none, empty, empty)
    current = torch.tensor(np.log(np.concatenate(RATIOS)), requires_grad=True)
    result = policy_loss(current, targets, LossConfig(name, **config))
    return float(result.loss.detach()) / sum(divisor_share(aggregate, length, 1, LONGEST) for length in LENGTHS)


def term(ratio, advantage, low, high):
    return np.minimum(ratio * advantage, np.clip(ratio, 1 - low, 1 + high) * advantage)


def normalized():
    rewards = np.array(REWARDS)
    return (rewards - rewards.mean()) / rewards.std()


def test_grpo():
    """arXiv:2402.03300, eq. 3: the mean over the group of each response's mean over its tokens."""
    means = [term(r, a, 0.2, 0.2).mean() for r, a in zip(RATIOS, normalized(), strict=True)]
    assert ours("grpo", "two-level", "deviation") == pytest.approx(-np.mean(means), rel=1e-12)


def test_dr_grpo():
    """arXiv:2503.20783: sums over tokens, neither length nor deviation; a constant instead, the longest response (its listing 1)."""
    centred = np.array(REWARDS) - np.mean(REWARDS)
    sums = [term(r, a, 0.2, 0.2).sum() for r, a in zip(RATIOS, centred, strict=True)]
    assert ours("dr-grpo", "constant", "none") == pytest.approx(-np.mean(sums) / LONGEST, rel=1e-12)


def test_dapo():
    """arXiv:2503.14476, eq. 8: one mean over all tokens of the group, bounds 0.2 and 0.28."""
    tokens = np.concatenate([term(r, a, 0.2, 0.28) for r, a in zip(RATIOS, normalized(), strict=True)])
    assert ours("dapo", "token", "deviation") == pytest.approx(-tokens.mean(), rel=1e-12)


def test_gspo():
    """arXiv:2507.18071, eq. 5: the mean over the group of one term a sequence."""
    ratios = [np.exp(np.log(r).mean()) for r in RATIOS]
    terms = [term(s, a, 3e-4, 4e-4) for s, a in zip(ratios, normalized(), strict=True)]
    assert ours("gspo", "sequence", "deviation", clip_low=3e-4, clip_high=4e-4) == pytest.approx(-np.mean(terms), rel=1e-9)


def test_cispo():
    """arXiv:2506.13585, eq. 4: one mean over all tokens, no lower bound."""
    tokens = np.concatenate([np.minimum(r, 1.28) * a * np.log(r) for r, a in zip(RATIOS, normalized(), strict=True)])
    assert ours("cispo", "token", "deviation", clip_low=1.0) == pytest.approx(-tokens.mean(), rel=1e-12)

"""The figures of an evaluation (learning.md, 10): mean, 95 % interval, pass@k. Pure.

The interval is the normal one of the mean over tasks (mean +- 1.96 standard errors of the tasks' means), since samples of one task are
not independent; with one task nothing is known and it spans the reward's range.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from gyre_engine.events.training import EvaluationReported

SOLVED = 1.0
"""Reward from which on an execution counts as a pass."""


def report(
    name: str,
    split: str,
    version: int,
    rewards: Mapping[str, Sequence[float]],
    failed: int,
    bounds: tuple[float, float] = (0.0, 1.0),
) -> EvaluationReported:
    """`rewards`: of each task, one value an execution that was scored; `failed`: executions without a score."""
    scored = {task: values for task, values in rewards.items() if values}
    means = [sum(values) / len(values) for _, values in sorted(scored.items())]
    mean = sum(means) / len(means) if means else 0.0
    low, high = interval(means, bounds)
    return EvaluationReported(
        evaluation=name, split=split, version=version, episodes=sum(map(len, scored.values())), failed=failed, mean=mean,
        low=low, high=high, pass_at_k=pass_at(scored),
    )  # fmt: skip


def interval(means: Sequence[float], bounds: tuple[float, float]) -> tuple[float, float]:
    """95 % interval of the mean of `means`, within `bounds`."""
    n = len(means)
    if n < 2:
        return bounds
    mean = sum(means) / n
    error = math.sqrt(sum((m - mean) ** 2 for m in means) / (n - 1) / n)
    return max(mean - 1.96 * error, bounds[0]), min(mean + 1.96 * error, bounds[1])


def pass_at(rewards: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """pass@k for k = 1, 2, 4, ... up to the fewest samples of a task: the unbiased estimate 1 - C(n - c, k) / C(n, k)."""
    if not rewards:
        return {}
    fewest, k, found = min(len(values) for values in rewards.values()), 1, {}
    while k <= fewest:
        chances = [_pass(len(v), sum(r >= SOLVED for r in v), k) for _, v in sorted(rewards.items())]
        found[str(k)] = sum(chances) / len(chances)
        k *= 2
    return found


def _pass(n: int, c: int, k: int) -> float:
    return 1.0 - math.comb(n - c, k) / math.comb(n, k)

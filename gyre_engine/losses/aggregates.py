"""How a target shares its execution's advantage, and what the core divides by (log-rules, 6).

Weights are frozen into micro-steps and never scaled by the batch: the core divides the summed gradient once, when the
step closes, by the sum of `divisor_share` over its executions.

| aggregate | weight of a target            | an execution adds to the divisor |
|-----------|-------------------------------|----------------------------------|
| two-level | advantage / trained tokens    | 1                                |
| token     | advantage                     | its trained tokens               |
| sequence  | advantage / tokens of its own trajectory | its trajectories      |
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

TWO_LEVEL = "two-level"
AGGREGATES = (TWO_LEVEL, "token", "sequence")


def token_weights(aggregate: str, advantage: float, trained_tokens: int, sequences: NDArray[np.int32]) -> NDArray[np.float64]:
    """float64[m]: the weight of each target of one execution; sequences: int32[m], numbered from 0."""
    _check(aggregate)
    if aggregate == "token":
        return np.full(len(sequences), advantage, dtype=np.float64)
    if aggregate == "sequence":
        return advantage / np.bincount(sequences)[sequences].astype(np.float64)
    return np.full(len(sequences), advantage / trained_tokens, dtype=np.float64)


def divisor_share(aggregate: str, trained_tokens: int, sequences: int) -> int:
    """What one execution adds to the step's divisor; `sequences` is its number of selected trajectories."""
    _check(aggregate)
    return {TWO_LEVEL: 1, "token": trained_tokens, "sequence": sequences}[aggregate]


def _check(aggregate: str) -> None:
    if aggregate not in AGGREGATES:
        raise ValueError(f'loss.aggregate has no "{aggregate}"; choose one of {", ".join(AGGREGATES)}')

"""How a target shares its execution's advantage, and what the core divides by (log-rules, 6).

Weights are frozen into micro-steps and never scaled by the batch: the core divides the summed gradient once, when the
step closes, by the sum of `divisor_share` over its executions. The weight of a target is advantage x share; terms without an
advantage (KL, entropy) are weighed by the share alone.

| aggregate | share of a target                  | shares of an execution add up to | an execution adds to the divisor |
|-----------|------------------------------------|----------------------------------|----------------------------------|
| two-level | 1 / trained tokens                 | 1                                | 1                                |
| token     | 1                                  | its trained tokens               | its trained tokens               |
| sequence  | 1 / tokens of its own trajectory   | its trajectories                 | its trajectories                 |
| constant  | 1                                  | its trained tokens               | loss.constant                    |
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

TWO_LEVEL = "two-level"
CONSTANT = "constant"
AGGREGATES = (TWO_LEVEL, "token", "sequence", CONSTANT)


def token_weights(aggregate: str, advantage: float, trained_tokens: int, sequences: NDArray[np.int32]) -> NDArray[np.float64]:
    """float64[m]: the weight of each target of one execution; sequences: int32[m], numbered from 0."""
    return advantage / _sharers(aggregate, trained_tokens, sequences)


def target_shares(aggregate: str, trained_tokens: int, sequences: NDArray[np.int32]) -> NDArray[np.float64]:
    """float64[m]: the same for an advantage of 1."""
    return 1.0 / _sharers(aggregate, trained_tokens, sequences)


def divisor_share(aggregate: str, trained_tokens: int, sequences: int, constant: int = 0) -> int:
    """What one execution adds to the step's divisor.

    sequences:  its number of selected trajectories
    constant:   `loss.constant`, for the aggregate of that name
    """
    _check(aggregate)
    if aggregate == CONSTANT and constant < 1:
        raise ValueError(f'loss.aggregate is "constant", and loss.constant is {constant}: give the tokens to divide by')
    return {TWO_LEVEL: 1, "token": trained_tokens, "sequence": sequences, CONSTANT: constant}[aggregate]


def _sharers(aggregate: str, trained_tokens: int, sequences: NDArray[np.int32]) -> NDArray[np.float64]:
    """float64[m]: among how many each target's advantage is shared."""
    _check(aggregate)
    if aggregate == TWO_LEVEL:
        return np.full(len(sequences), trained_tokens, dtype=np.float64)
    if aggregate == "sequence":
        return np.bincount(sequences)[sequences].astype(np.float64)
    return np.ones(len(sequences), dtype=np.float64)


def _check(aggregate: str) -> None:
    if aggregate not in AGGREGATES:
        raise ValueError(f'loss.aggregate has no "{aggregate}"; choose one of {", ".join(AGGREGATES)}')

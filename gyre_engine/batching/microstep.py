"""A packed micro-step: everything a cell needs to add its gradient, in one record."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from gyre_engine.dead_end import DeadEnd
from gyre_engine.experts import NO_ROWS, Rows

_OF_TARGETS = ("src", "dst", "logprobs", "versions", "weight", "sequence", "share", "reference")
_OF_TOKENS = ("ids", "position", "end")
_MAY_BE_EMPTY = ("share", "reference")


class InvalidMicroStep(ValueError, DeadEnd):
    """The fields of a micro-step do not fit together."""


@dataclass(frozen=True, slots=True, eq=False)
class PackedMicroStep:
    """Trees of one or more executions, depth-first, side by side; n tokens, m targets.

    ids:         int32[n]
    position:    int32[n] depth of the token on its path, from 0 at each root
    end:         int32[n] end of the token's subtree: key j is visible to query i iff j <= i < end[j]
    src, dst:    int32[m] row src predicts token dst; dst ascends
    logprobs:    float32[m] behaviour log-probabilities of the targets
    versions:    int32[m] weight version under which each target was sampled
    weight:      float64[m] advantage x the target's share of its execution (two-level: 1 / trained tokens)
    sequence:    int32[m] the target's trajectory, numbered within the micro-step
    executions:  (execution, first target, count), in order
    share:       float64[m] the weight without the advantage, for terms that have none; empty in records of earlier versions
    reference:   float32[m] log-probabilities of the targets under the reference policy; empty where loss.kl is 0
    experts:     uint8[n, width] which experts each token is routed to (gyre_engine.experts); NO_ROWS: not recorded
    """

    ids: NDArray[np.int32]
    position: NDArray[np.int32]
    end: NDArray[np.int32]
    src: NDArray[np.int32]
    dst: NDArray[np.int32]
    logprobs: NDArray[np.float32]
    versions: NDArray[np.int32]
    weight: NDArray[np.float64]
    sequence: NDArray[np.int32]
    executions: tuple[tuple[str, int, int], ...]
    share: NDArray[np.float64] = field(default_factory=lambda: np.empty(0, np.float64))
    reference: NDArray[np.float32] = field(default_factory=lambda: np.empty(0, np.float32))
    experts: Rows = field(default_factory=lambda: NO_ROWS)

    def __post_init__(self) -> None:
        tokens, targets = len(self.ids), len(self.dst)
        for name in (*_OF_TOKENS, *_OF_TARGETS):
            expected = tokens if name in _OF_TOKENS else targets
            found = len(getattr(self, name))
            if found != expected and (found or name not in _MAY_BE_EMPTY):
                raise InvalidMicroStep(f"micro-step field {name} has {found} entries, expected {expected}")
        if self.experts.size and len(self.experts) != tokens:
            raise InvalidMicroStep(f"micro-step field experts has {len(self.experts)} rows, expected {tokens}")
        if targets and not (self.src.min() >= 0 and np.all(self.src < self.dst) and self.dst.max() < tokens):
            raise InvalidMicroStep("micro-step: every target needs a row before it, within the pack")

    @property
    def tokens(self) -> int:
        """Packed tokens: the cost of the forward pass."""
        return len(self.ids)

    @property
    def targets(self) -> int:
        """Trained tokens."""
        return len(self.dst)

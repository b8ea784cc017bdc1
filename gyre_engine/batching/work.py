"""What admission chose from one execution: the segments of its selected trajectories and the tokens to train.

Between `assemble`, which makes it, and `cutting`, which takes it. Promises: one that contradicts itself cannot be made, so nothing
after it checks again. numpy only.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from gyre_engine.dead_end import DeadEnd
from gyre_engine.experts import NO_ROWS, Rows

Ints = NDArray[np.int32]
Floats = NDArray[np.float32]


class InvalidWork(ValueError, DeadEnd):
    """An execution's work contradicts itself; the message names the execution and the field."""


@dataclass(frozen=True, slots=True, eq=False)
class Segment:
    """A run of tokens without a branch.

    ids:     int32[n], n >= 1
    parent:  index of the parent in the execution's list, -1 for a root
    """

    ids: Ints
    parent: int = -1


@dataclass(frozen=True, slots=True, eq=False)
class ExecutionWork:
    """The selected part of one execution's trajectory tree.

    segments:        depth-first: a parent before its children, subtrees contiguous
    trained:         int32[m] ascending positions in the concatenation of all segments: the tokens to train
    logprobs:        float32[m] behaviour log-probabilities of those tokens, at the run's temperature
    versions:        int32[m] weight version under which each was sampled
    advantage:       of the execution, relative to its group
    trained_tokens:  the frozen count for the whole execution (log-rules 6): the divisor of its mean
    sequences:       int32[m] selected trajectory of each trained token (0, 1, ...), each on one path
    experts:         uint8[tokens, width] those of all tokens, one segment after the other (gyre_engine.experts); NO_ROWS: not recorded
    Raises InvalidWork where these do not fit together.
    """

    execution: str
    segments: tuple[Segment, ...]
    trained: Ints
    logprobs: Floats
    versions: Ints
    advantage: float
    trained_tokens: int
    sequences: Ints
    experts: Rows = field(default_factory=lambda: NO_ROWS)

    def __post_init__(self) -> None:
        _check_tree(self)
        _check_trained(self)

    @property
    def tokens(self) -> int:
        """Unique tokens of all segments."""
        return sum(len(segment.ids) for segment in self.segments)


def _check_tree(work: ExecutionWork) -> None:
    path: list[int] = []
    for index, segment in enumerate(work.segments):
        if len(segment.ids) == 0:
            raise InvalidWork(f"execution {work.execution}: segment {index} is empty; leave it out")
        while path and path[-1] != segment.parent:
            path.pop()
        if segment.parent != -1 and not path:
            raise InvalidWork(
                f"execution {work.execution}: segment {index} has parent {segment.parent}, "
                "which is not on the path before it; list segments depth-first, parents before children"
            )
        path.append(index)


def _check_trained(work: ExecutionWork) -> None:
    count = len(work.trained)
    name = f"execution {work.execution}"
    for what, values in (("logprobs", work.logprobs), ("versions", work.versions), ("sequences", work.sequences)):
        if len(values) != count:
            raise InvalidWork(f"{name}: {count} trained tokens but {len(values)} {what}")
    if work.experts.size and len(work.experts) != work.tokens:
        raise InvalidWork(f"{name}: {work.tokens} tokens but {len(work.experts)} rows of routed experts")
    if count and (np.any(np.diff(work.trained) <= 0) or work.trained[0] < 0 or work.trained[-1] >= work.tokens):
        raise InvalidWork(f"{name}: trained positions must ascend within its {work.tokens} tokens")
    if count > work.trained_tokens:
        raise InvalidWork(f"{name}: {count} trained tokens, more than the frozen count {work.trained_tokens}")
    if not np.all(np.isfinite(work.logprobs)) or not np.isfinite(work.advantage):
        raise InvalidWork(f"{name}: a log-probability or the advantage is not finite")

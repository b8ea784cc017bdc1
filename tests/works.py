"""What tests of batching and training make executions of."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from gyre_engine.batching.work import Segment


def first_leaves(segments: Sequence[Segment], trained: Iterable[int]) -> NDArray[np.int32]:
    """A trajectory for each trained token: that of the first leaf below it, of the leaves that a trained token leads to."""
    ends = np.cumsum([len(segment.ids) for segment in segments])
    owners = [int(np.searchsorted(ends, token, side="right")) for token in trained]
    used = {segment for owner in owners for segment in _path(segments, owner)}
    below: dict[int, int] = {}
    for index in sorted(used):
        below.setdefault(segments[index].parent, index)
    return np.array([_leaf(below, owner) for owner in owners], dtype=np.int32)


def _path(segments: Sequence[Segment], index: int) -> Iterable[int]:
    while index >= 0:
        yield index
        index = segments[index].parent


def _leaf(below: dict[int, int], index: int) -> int:
    while index in below:
        index = below[index]
    return index

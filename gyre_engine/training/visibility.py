"""From `end` to attention spans: which key ranges each run of queries sees.

Key j is visible to query i iff j <= i < end[j]. A pack is a row of runs without a branch; a run sees its ancestors
whole and itself causally, so attention costs what the paths cost and never the square of the pack.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

Range = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Span:
    """Queries start..stop see the rows of `ancestors` (ascending, disjoint) and themselves causally."""

    start: int
    stop: int
    ancestors: tuple[Range, ...]

    @property
    def prefix(self) -> int:
        """Keys before the span itself."""
        return sum(stop - start for start, stop in self.ancestors)


@lru_cache(maxsize=8)
def spans_of_bytes(end: bytes) -> tuple[Span, ...]:
    """As `spans`, of the bytes of int32 `end`; kept, because every layer asks for the same."""
    return spans(np.frombuffer(end, dtype=np.int32))


def spans(end: NDArray[np.int32]) -> tuple[Span, ...]:
    """The runs of a pack in order, together covering every row once."""
    found: list[Span] = []
    path: list[Range] = []
    for start, stop in _runs(end):
        path = [(a, b) for a, b in path if end[a] > start]
        found.append(Span(start, stop, _joined(path)))
        path.append((start, stop))
    return tuple(found)


def _runs(end: NDArray[np.int32]) -> list[Range]:
    """A run breaks where the subtree's end changes, or where the row before was a leaf's last."""
    rows = np.arange(1, len(end))
    breaks = rows[(end[1:] != end[:-1]) | (end[:-1] == rows)]
    edges = [0, *breaks.tolist(), len(end)]
    return list(pairwise(edges))


def _joined(path: list[Range]) -> tuple[Range, ...]:
    joined: list[Range] = []
    for start, stop in path:
        if joined and joined[-1][1] == start:
            joined[-1] = (joined[-1][0], stop)
        else:
            joined.append((start, stop))
    return tuple(joined)

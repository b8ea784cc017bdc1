"""From `end` to rectangles of attention: which rows of a pack see which.

Key j is visible to query i iff j <= i < end[j]. Packs are depth-first, so a node, its first child, that child's first child and so on
lie side by side: a chain, one for each leaf, which sees itself causally. The rows after the chain that descend from a node of it
lie side by side too, and see the chain up to that node whole. So a pack of s segments is s parts, all of them ranges, and
attention costs what the paths cost, never the square of the pack. For GPUs the same by blocks of rows. numpy only.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

Ends = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Part:
    """Queries start..stop see the keys key_start..key_stop: all of them, or of a causal part each those up to itself."""

    start: int
    stop: int
    key_start: int
    key_stop: int

    @property
    def causal(self) -> bool:
        """Keys that are the queries' own rows."""
        return self.start == self.key_start


@lru_cache(maxsize=8)
def parts_of_bytes(end: bytes) -> tuple[Part, ...]:
    """As `parts`, of the bytes of int32 `end`; kept, because every layer asks for the same."""
    return parts(np.frombuffer(end, dtype=np.int32))


def parts(end: Ends) -> tuple[Part, ...]:
    """All pairs that see each other, each in one part: first the causal ones, which cover every row once, in order."""
    chains = _chains(end)
    own = [Part(start, stop, start, stop) for start, stop in chains]
    return (*own, *(part for start, stop in chains for part in _below(end, start, stop)))


def _chains(end: Ends) -> list[tuple[int, int]]:
    """A chain breaks behind each leaf."""
    leaves = np.flatnonzero(end[:-1] == np.arange(1, len(end))) + 1
    return list(pairwise([0, *leaves.tolist(), len(end)]))


def _below(end: Ends, start: int, stop: int) -> Iterator[Part]:
    """Of the nodes of one chain from the last up: the rows after those that descend from the node below, and from this one."""
    drops = start + 1 + np.flatnonzero(np.diff(end[start:stop]))
    reached = stop
    for last in reversed(drops.tolist()):
        until = int(end[last - 1])
        yield Part(reached, until, start, last)
        reached = until


def visible_blocks(end: Ends, block: int) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """bool[blocks of rows, blocks of keys]: what is seen in part, and what is seen whole."""
    starts = np.arange(0, len(end), block)
    stops = np.minimum(starts + block, len(end))
    earlier = starts[None, :] < starts[:, None]
    furthest, nearest = np.maximum.reduceat(end, starts), np.minimum.reduceat(end, starts)
    seen = (earlier & (furthest[None, :] > starts[:, None])) | np.eye(len(starts), dtype=np.bool_)
    whole = earlier & (nearest[None, :] >= stops[:, None])
    return seen & ~whole, whole

"""From whom a cell reads a published version: a tree over the cells in their fixed order, the core's buffer at its root. Pure.

A cell that is away, trains or leaves is stepped over, towards the root. So is one whose bytes are not those that the core published.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from gyre_engine.events.cells import WeightsHeld
from gyre_engine.events.training import Published
from gyre_engine.scheduling.cells import Fleet
from gyre_engine.transfer import BadDescriptor, Descriptor

CORE = ""


@dataclass(frozen=True, slots=True)
class Source:
    """Where a version is read: the agent of `cell`, or the core's buffer (CORE)."""

    cell: str
    descriptor: bytes


@dataclass(frozen=True, slots=True)
class Tree:
    """`order`: all cells; `fanout`: how many read from the root, and from each of them. 0: all of them from the root."""

    order: tuple[str, ...] = ()
    fanout: int = 0

    def above(self, cell: str) -> tuple[str, ...]:
        """The cells between `cell` and the root, nearest first."""
        if not self.fanout or cell not in self.order:
            return ()
        found, at = [], self.order.index(cell)
        while at >= self.fanout:
            at = at // self.fanout - 1
            found.append(self.order[at])
        return tuple(found)

    def passes_on(self, cell: str) -> bool:
        """Whether others are below `cell`."""
        return bool(self.fanout) and cell in self.order and (self.order.index(cell) + 1) * self.fanout < len(self.order)


def source(
    above: tuple[str, ...],
    published: Published,
    held: Mapping[str, WeightsHeld],
    fleet: Fleet,
    tried: Collection[str],
    patient: bool,
) -> Source | None:
    """Where to read `published`; None: wait, for the next above is about to have it.

    tried: cells that could not be read; patient: whether there is time left to wait
    """
    for cell in above:
        state = fleet.cells.get(cell)
        if state is None or fleet.leaves(cell) or cell in tried:
            continue
        said = held.get(cell)
        if said is not None and said.incarnation == state.incarnation and _same(said, published):
            return Source(cell, said.descriptor)
        if patient and fleet.serves(cell) and state.version < published.version:
            return None
    return Source(CORE, published.descriptor)


def _same(said: WeightsHeld, published: Published) -> bool:
    """Whether a cell has the very bytes that the core published, in chunks that can be checked one by one."""
    if (said.version, said.weights_hash) != (published.version, published.weights_hash):
        return False
    try:
        theirs, own = Descriptor.from_bytes(said.descriptor), Descriptor.from_bytes(published.descriptor)
    except BadDescriptor:
        return False
    return (theirs.digest, theirs.chunk, theirs.nbytes) == (own.digest, own.chunk, own.nbytes)

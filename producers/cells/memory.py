"""The memory that an engine and a trainer share: the engine's while the cell samples, given back while it trains.

promises  in the order that SGLang demands: given back only while paused, with nothing in flight and no KV that is still read; taken
          back before weights are loaded; weights are loaded again after it, whatever their version, since they were not kept

An agent that starts again, or whose engine was lost, does not know of it: an engine whose memory was away dies of the next weights,
and is started again.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from gyre_engine.sampling.port import InferenceEngine
from producers.cells.weights import Weights


@dataclass(slots=True)
class Memory:
    """shared: whether it is given back at all."""

    engine: InferenceEngine
    weights: Weights
    shared: bool = False
    _giving: asyncio.Task[None] | None = None

    async def give(self) -> None:
        """To the trainer, once. A caller that gives up waiting takes nothing back: the engine goes on giving."""
        if self.shared and self._giving is None:
            self._giving = asyncio.create_task(self.engine.release_memory())
        if self._giving is not None:
            await asyncio.shield(self._giving)

    async def take_back(self) -> None:
        """If it was given: the engine has no weights then, until they are loaded."""
        if self._giving is not None:
            await asyncio.shield(self._giving)
            self._giving, self.weights.lacking = None, True
            await self.engine.reclaim_memory()

    def forget(self) -> None:
        """The engine was lost: the next one has its memory, and weights."""
        if self._giving is not None:
            self._giving.cancel()
        self._giving, self.weights.lacking = None, False

"""The memory that an engine and a trainer share: the engine's while the cell samples, given back while it trains.

promises  in the order that SGLang demands: given back only while paused, with nothing in flight and no KV that is still read; taken
          back before weights are loaded; weights are loaded again after it, whatever their version, since they were not kept

An agent that starts again does not know of it: an engine whose memory was away dies of the next weights, and is started again.
"""

from __future__ import annotations

from dataclasses import dataclass

from gyre_engine.sampling.port import InferenceEngine
from producers.cells.weights import Weights


@dataclass(slots=True)
class Memory:
    """shared: whether it is given back at all."""

    engine: InferenceEngine
    weights: Weights
    shared: bool = False
    _given: bool = False

    async def give(self) -> None:
        """To the trainer, once."""
        if self.shared and not self._given:
            await self.engine.release_memory()
            self._given = True

    async def take_back(self) -> None:
        """If it was given: the engine has no weights then, until they are loaded."""
        if self._given:
            self._given, self.weights.lacking = False, True
            await self.engine.reclaim_memory()

"""The weights that a cell's engine samples with: pulled, loaded, probed, told.

writes    cells: weights-loaded, probe-gap
promises  an engine gets a whole published version or keeps what it has
"""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass

from gyre_engine.events.cells import ProbeGap, WeightsLoaded
from gyre_engine.events.training import Published
from gyre_engine.sampling.port import InferenceEngine
from gyre_engine.transfer import IntegrityError, PeerLost, WrongKey
from producers.cells.kv_moves import Speaker
from producers.cells.snapshot import Snapshots

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class Weights:
    """version: that the engine holds, -1 before it was asked."""

    engine: InferenceEngine
    snapshots: Snapshots
    speaker: Speaker
    version: int = -1

    async def take(self, ordered: Published | None) -> bool:
        """Load the ordered version; whether the engine holds it now. Its source may be gone until the core publishes again."""
        if ordered is None or ordered.version == self.version:
            return True
        began, speaker = time.monotonic(), self.speaker
        try:
            folder = await asyncio.to_thread(self.snapshots.pull, ordered)
        except (PeerLost, WrongKey, IntegrityError) as error:
            logger.warning("%s: version %d cannot be read yet: %s", speaker.cell, ordered.version, error)
            return False
        await self.engine.load_weights(folder, str(ordered.version))
        self.version = ordered.version
        self.snapshots.keep_only(ordered.version)
        await speaker.say(
            WeightsLoaded(
                cell=speaker.cell, incarnation=speaker.incarnation, version=ordered.version, weights_hash=ordered.weights_hash,
                took_us=int((time.monotonic() - began) * 1e6),
            )
        )  # fmt: skip
        await self._probe(ordered)
        return True

    async def _probe(self, published: Published) -> None:
        """Score the recorded probe with the engine: the gap between engine and trainer (learning.md, 8)."""
        ids = published.probe_ids
        if len(ids) < 2 or len(published.probe_logprobs) != len(ids) - 1:
            return
        scores = await self.engine.score([int(i) for i in ids])
        gaps = [abs(a - float(b)) for a, b in zip(scores, published.probe_logprobs, strict=True)]
        mean = sum(gaps) / len(gaps)
        await self.speaker.say(
            ProbeGap(cell=self.speaker.cell, version=published.version, tokens=len(gaps), gap_max=max(gaps), gap_mean=mean)
        )

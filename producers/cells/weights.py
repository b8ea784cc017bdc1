"""The weights that a cell's engine samples with: pulled, loaded, probed, told.

writes    cells: weights-held, weights-loaded, probe-gap
promises  an engine gets a whole published version or keeps what it has; a source that is away costs time, never the version
"""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass, field
from pathlib import Path

from gyre_engine.events.cells import ProbeGap, WeightsHeld, WeightsLoaded
from gyre_engine.events.training import Published
from gyre_engine.sampling.port import InferenceEngine
from gyre_engine.scheduling.broadcast import CORE, Tree, source
from gyre_engine.transfer import IntegrityError, PeerLost, WrongKey
from producers.cells.kv_moves import Speaker
from producers.cells.orders import Orders
from producers.cells.snapshot import Snapshots

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class Weights:
    """version: that the engine holds, -1 before it was asked. patience_s: how long to wait for the cell above in the tree."""

    engine: InferenceEngine
    snapshots: Snapshots
    speaker: Speaker
    tree: Tree = field(default_factory=Tree)
    patience_s: float = 0.0
    version: int = -1
    _unprobed: Published | None = None
    _told: tuple[int, int] = (0, -1)
    _since: float = 0.0
    _tried: set[str] = field(default_factory=set)

    async def ready(self, orders: Orders) -> int | None:
        """The ordered version where the engine has another one and this one stands here whole, pulled if need be."""
        ordered = orders.weights
        if ordered is None or ordered.version == self.version or await self._pulled(orders, ordered) is None:
            return None
        return ordered.version

    async def take(self, orders: Orders) -> bool:
        """Load the ordered version; whether the engine holds it now. Its source may be gone until the core publishes again."""
        ordered = orders.weights
        if ordered is None or ordered.version == self.version:
            return True
        began, speaker = time.monotonic(), self.speaker
        folder = await self._pulled(orders, ordered)
        if folder is None:
            return False
        if self.tree.passes_on(speaker.cell):
            await self._hold(ordered)
        await self.engine.load_weights(folder, str(ordered.version))
        self.version = ordered.version
        await asyncio.to_thread(self.snapshots.keep_only, ordered.version)
        await speaker.say(
            WeightsLoaded(
                cell=speaker.cell, incarnation=speaker.incarnation, version=ordered.version, weights_hash=ordered.weights_hash,
                took_us=int((time.monotonic() - began) * 1e6),
            )
        )  # fmt: skip
        self._unprobed = ordered
        return True

    async def _pulled(self, orders: Orders, ordered: Published) -> Path | None:
        """A folder with the whole version, from the nearest source that can be read; None where it has to wait."""
        if self._told != (ordered.core_epoch, ordered.version):
            self._told, self._since, self._tried = (ordered.core_epoch, ordered.version), time.monotonic(), set()
        above = self.tree.above(self.speaker.cell)
        while True:
            patient = time.monotonic() - self._since < self.patience_s
            found = source(above, ordered, orders.held, orders.fleet, self._tried, patient)
            if found is None:
                return None
            try:
                return await asyncio.to_thread(self.snapshots.pull, ordered, found.descriptor)
            except (PeerLost, WrongKey, IntegrityError) as error:
                whence = found.cell or "the core"
                logger.warning("%s: version %d cannot be read from %s: %s", self.speaker.cell, ordered.version, whence, error)
            if found.cell == CORE:
                return None
            self._tried.add(found.cell)

    async def _hold(self, ordered: Published) -> None:
        descriptor = await asyncio.to_thread(self.snapshots.hold, ordered.version)
        await self.speaker.say(
            WeightsHeld(
                cell=self.speaker.cell, incarnation=self.speaker.incarnation, version=ordered.version,
                weights_hash=ordered.weights_hash, descriptor=descriptor,
            )
        )  # fmt: skip

    async def probe(self) -> None:
        """Score the probe of a version that was loaded since: the gap between engine and trainer (learning.md, 8).

        Not while the engine is paused: SGLang keeps what it is asked then until it goes on.
        """
        published, self._unprobed = self._unprobed, None
        if published is None or len(published.probe_ids) < 2 or len(published.probe_logprobs) != len(published.probe_ids) - 1:
            return
        ids = published.probe_ids
        scores = await self.engine.score([int(i) for i in ids])
        gaps = [abs(a - float(b)) for a, b in zip(scores, published.probe_logprobs, strict=True)]
        mean = sum(gaps) / len(gaps)
        await self.speaker.say(
            ProbeGap(cell=self.speaker.cell, version=published.version, tokens=len(gaps), gap_max=max(gaps), gap_mean=mean)
        )

"""The weights that a cell's engine samples with: pulled, loaded, probed, told.

writes    cells: weights-held, weights-loaded, kv-kept, probe-gap
promises  an engine gets a whole published version or keeps what it has; a source that is away costs time, never the version; KV that
          outlives its weights is told, and what it does to the next version's scores is measured
"""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass, field
from pathlib import Path

from gyre_engine.events.cells import KvKept, ProbeGap, WeightsHeld, WeightsLoaded
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
    """version: that the engine holds, -1 before it was asked. patience_s: how long to wait for the cell above in the tree.

    keep_kv: the engine was started to keep KV across versions
    lacking: it has no weights at all: its memory was away
    """

    engine: InferenceEngine
    snapshots: Snapshots
    speaker: Speaker
    tree: Tree = field(default_factory=Tree)
    patience_s: float = 0.0
    keep_kv: bool = False
    version: int = -1
    lacking: bool = False
    _unprobed: Published | None = None
    _probed: int = -1
    """The last version whose probe was scored."""
    _prepared: bool = False
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
        if ordered is None or (ordered.version == self.version and not self.lacking):
            return not self.lacking
        began, speaker = time.monotonic(), self.speaker
        folder = await self._pulled(orders, ordered)
        if folder is None:
            return False
        if self.tree.passes_on(speaker.cell):
            await self._hold(ordered)
        if self.keep_kv and _can_be_probed(ordered):
            await self._prepare_kept(ordered)
        await self.engine.load_weights(folder, str(ordered.version))
        before, self.version, self.lacking = self.version, ordered.version, False
        await asyncio.to_thread(self.snapshots.keep_only, ordered.version)
        await speaker.say(
            WeightsLoaded(
                cell=speaker.cell, incarnation=speaker.incarnation, version=ordered.version, weights_hash=ordered.weights_hash,
                took_us=int((time.monotonic() - began) * 1e6),
            )
        )  # fmt: skip
        if self.keep_kv:
            await self._tell_kept(before)
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

    async def probe(self, orders: Orders) -> None:
        """Score the probe of a version that was loaded since, or that the engine began with: its gap to the trainer (learning.md, 8).

        Not while the engine is paused: SGLang keeps what it is asked then until it goes on.
        """
        if self._began_with(orders.weights):
            self._unprobed = orders.weights
        published, self._unprobed = self._unprobed, None
        if published is None or not _can_be_probed(published):
            return
        self._probed = published.version
        await self._tell_gap(published, await self.engine.score(_ids(published)))
        if self._prepared:
            self._prepared = False
            await self._probe_kept(published)

    def _began_with(self, ordered: Published | None) -> bool:
        """Whether the engine holds this version without having been told to load it, and nobody has probed it."""
        return (
            ordered is not None and not self.lacking and self._probed < ordered.version == self.version and self._unprobed is None
        )

    async def _prepare_kept(self, ordered: Published) -> None:
        """Have the engine hold KV of the coming probe's first half, as it holds that of calls: of the weights that it has still."""
        half = len(ordered.probe_ids) // 2
        await self.engine.score(_ids(ordered)[: half + 1], reuse=half)
        self._prepared = True

    async def _tell_kept(self, before: int) -> None:
        kept, s = (await self.engine.stats()).kept_kv, self.speaker
        await s.say(KvKept(cell=s.cell, incarnation=s.incarnation, from_version=before, to_version=self.version, tokens=kept))

    async def _probe_kept(self, published: Published) -> None:
        """The gap of the probe's second half, as a call has it that goes on from kept KV: its first half is KV of other weights."""
        scores = await self.engine.score(_ids(published), reuse=len(published.probe_ids) // 2)
        if 0 < len(scores) < len(published.probe_logprobs):
            await self._tell_gap(published, scores)
        else:
            logger.warning(
                "%s: nothing of the probe was kept, so version %d has no gap on kept KV", self.speaker.cell, published.version
            )

    async def _tell_gap(self, published: Published, scores: tuple[float, ...]) -> None:
        """Of the probe's last tokens, as many as were scored."""
        kept = len(published.probe_logprobs) - len(scores)
        gaps = [abs(a - float(b)) for a, b in zip(scores, published.probe_logprobs[kept:], strict=True)]
        await self.speaker.say(
            ProbeGap(
                cell=self.speaker.cell, version=published.version, tokens=len(gaps), gap_max=max(gaps),
                gap_mean=sum(gaps) / len(gaps), kept_tokens=kept,
            )
        )  # fmt: skip


def _can_be_probed(published: Published) -> bool:
    return len(published.probe_ids) >= 2 and len(published.probe_logprobs) == len(published.probe_ids) - 1


def _ids(published: Published) -> list[int]:
    return [int(i) for i in published.probe_ids]

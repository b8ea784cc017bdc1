"""KV that outlives its weights is told, and what it does is measured: `kv.across_versions = "keep"`."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from gyre_engine.batching.step_inputs import PROBE_LENGTH, fixed_probe
from gyre_engine.events import Event
from gyre_engine.events.cells import KvExported, KvImported, KvKept, ProbeGap, WeightsLoaded
from gyre_engine.events.training import CoreElected, Published
from gyre_engine.sampling.kv import KvTicket
from gyre_engine.sampling.native import NativeEngine
from gyre_engine.sampling.native.fresh import QUICKSTART, write_fresh_model
from gyre_engine.scheduling.broadcast import Tree
from gyre_engine.scheduling.classes import ClassPlan
from gyre_engine.transfer import Region
from gyre_engine.transfer.tcp import TcpTransfer
from producers.cells.kv_moves import Imports, Speaker
from producers.cells.orders import Orders, obey
from producers.cells.snapshot import Snapshots
from producers.cells.weights import Weights

TINY = replace(QUICKSTART, vocab=96, hidden=32, layers=2, heads=4, kv_heads=2, head_dim=8, ffn=48, max_context=512)
PROBE = [(5 * i * i + i) % 96 for i in range(40)]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    root = tmp_path_factory.mktemp("models")
    first, second = (write_fresh_model(root / f"v{seed}", TINY, seed=seed, spread=0.25) for seed in (1, 2))
    return first, second


def models(folders: tuple[Path, Path]) -> tuple[Any, Any]:
    from transformers import Qwen3ForCausalLM

    old, new = (Qwen3ForCausalLM.from_pretrained(where, dtype=torch.float32) for where in folders)
    return old, new


def scores(model: Any, ids: list[int], past: Any = None) -> list[float]:
    """By transformers: log-probabilities of ids[1:]."""
    logits = model(torch.tensor([ids]), past_key_values=past, use_cache=True).logits[0, :-1]
    return [float(row[token]) for row, token in zip(logits.log_softmax(-1), ids[1:], strict=True)]


@dataclass
class Cell:
    """A native engine of version 0 and its agent's weights; the core publishes the second folder as version 1."""

    folders: tuple[Path, Path]
    scratch: Path
    keep: bool
    said: list[Event] = field(default_factory=list)
    transfer: TcpTransfer = field(default_factory=TcpTransfer)

    def __post_init__(self) -> None:
        self.engine = NativeEngine(self.folders[0], "0", keep_kv=self.keep)
        snapshots, speaker = Snapshots(self.folders[0], self.scratch, self.transfer), Speaker("c1", "i", self.say)
        self.weights = Weights(self.engine, snapshots, speaker, Tree(), keep_kv=self.keep, version=0)

    async def say(self, event: Event) -> None:
        self.said.append(event)

    def published(self, logprobs: list[float], version: int = 1, ids: list[int] = PROBE) -> Orders:
        image = np.fromfile(self.folders[version] / "model.safetensors", dtype=np.uint8)
        descriptor = self.transfer.register(Region.of_array(image))
        orders = Orders("c1", ClassPlan(batch=1, mu=1, phi=0, steps=9))
        for event in (
            CoreElected(core_epoch=1, holder="h", cell="c0"),
            Published(
                core_epoch=1, version=version, weights_hash=hashlib.sha256(image.data).hexdigest(), descriptor=descriptor.to_bytes(),
                nbytes=image.nbytes, probe_ids=np.array(ids, np.int32), probe_logprobs=np.array(logprobs, np.float32),
            ),
        ):  # fmt: skip
            orders = obey(orders, event)
        return orders

    async def load(self, orders: Orders) -> None:
        """As a cell does that comes back to sampling: paused until the weights are there."""
        await self.engine.pause(abort=True)
        assert await self.weights.take(orders)
        await self.engine.resume()
        await self.weights.probe(orders)


@pytest.fixture(params=[True, False], ids=["keep", "recompute"])
async def cell(request: pytest.FixtureRequest, folders: tuple[Path, Path], tmp_path: Path) -> AsyncIterator[Cell]:
    made = Cell(folders, tmp_path, request.param)
    yield made
    await made.engine.close()
    made.transfer.close()


async def test_a_publication_tells_what_was_kept_and_what_that_does_to_a_probe(cell: Cell, folders: tuple[Path, Path]) -> None:
    """The gap on kept KV is what transformers gives: the new model reads 20 tokens on the KV of 20 that the old one read."""
    old, new = models(folders)
    with torch.no_grad():
        whole = scores(new, PROBE)
        on_kept = scores(new, PROBE[20:], old(torch.tensor([PROBE[:20]]), use_cache=True).past_key_values)
    await cell.load(cell.published(whole))
    kinds = [type(event) for event in cell.said]
    fresh = next(event for event in cell.said if isinstance(event, ProbeGap))
    assert (fresh.version, fresh.tokens, fresh.kept_tokens) == (1, 39, 0) and fresh.gap_max <= 1e-4
    if not cell.keep:
        assert kinds == [WeightsLoaded, ProbeGap]
        return
    assert kinds == [WeightsLoaded, KvKept, ProbeGap, ProbeGap]
    kept, gap = cell.said[1], cell.said[3]
    assert isinstance(kept, KvKept) and isinstance(gap, ProbeGap)
    assert (kept.from_version, kept.to_version, kept.tokens, kept.source) == (0, 1, 20, "")
    gaps = [abs(a - b) for a, b in zip(on_kept, whole[20:], strict=True)]
    assert (gap.version, gap.tokens, gap.kept_tokens) == (1, 19, 20) and max(gaps) > 0.1
    assert gap.gap_max == pytest.approx(max(gaps), abs=1e-4) and gap.gap_mean == pytest.approx(sum(gaps) / 19, abs=1e-4)


async def test_the_version_that_an_engine_began_with_is_probed_once(cell: Cell, folders: tuple[Path, Path]) -> None:
    """Nothing is loaded: the gap is measured all the same, by ids that need no data."""
    model, _ = models(folders)
    ids = fixed_probe(model.config.vocab_size)
    with torch.no_grad():
        orders = cell.published(scores(model, ids), version=0, ids=ids)
    for _ in range(2):
        assert await cell.weights.take(orders)
        await cell.weights.probe(orders)
    (gap,) = cell.said
    assert isinstance(gap, ProbeGap)
    assert (gap.version, gap.tokens, gap.kept_tokens) == (0, PROBE_LENGTH - 1, 0) and 0 < gap.gap_max <= 1e-4


class Taker:
    """Takes whatever KV it is offered."""

    async def export_kv(self, rid: str, *, lease: float) -> KvTicket | None:
        return None

    async def import_kv(self, ticket: KvTicket) -> int:
        return ticket.tokens

    async def release_kv(self, ticket: KvTicket) -> None:
        pass


@pytest.mark.parametrize(("offered", "told"), [("2", [(2, 3, 49, "c2")]), ("3", [])])
async def test_an_import_of_another_version_is_told_as_kept(offered: str, told: list[tuple[int, int, int, str]]) -> None:
    said: list[Event] = []
    answered = asyncio.Event()

    async def say(event: Event) -> None:
        said.append(event)
        if isinstance(event, KvImported):
            answered.set()

    ticket = KvTicket(offered, (1, 2, 1, 49, 8), b"where", b"ids")
    offer = KvExported(
        cell="c2", incarnation="i2", command_epoch=1, command_number=9, execution="g0.1.0", rid="a", destination="c1", tokens=49,
        nbytes=ticket.nbytes, weight_version=offered, ticket=ticket.to_bytes(), took_us=1,
    )  # fmt: skip
    imports = Imports(Taker(), Speaker("c1", "i", say), lambda: 3)
    imports.take({("c2", "a"): offer}, serving=True)
    await answered.wait()
    await imports.stop()
    kept = [event for event in said if isinstance(event, KvKept)]
    assert [(event.from_version, event.to_version, event.tokens, event.source) for event in kept] == told

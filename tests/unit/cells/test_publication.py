"""A version goes from the core through the tree of cells into engines, over real transfers: whole, and on where it broke off."""

import hashlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from gyre_engine.events import Event
from gyre_engine.events.cells import CellRole, CellStarted, WeightsHeld, WeightsLoaded
from gyre_engine.events.training import CoreElected, Published
from gyre_engine.sampling.scripted import ScriptedEngine
from gyre_engine.scheduling.broadcast import Tree
from gyre_engine.scheduling.classes import ClassPlan
from gyre_engine.transfer import IntegrityError, Progress, Region
from gyre_engine.transfer.tcp import TcpTransfer
from producers.cells.kv_moves import Speaker
from producers.cells.orders import Orders, obey
from producers.cells.snapshot import Snapshots
from producers.cells.weights import Weights

CELLS = ("c0", "c1", "c2")
MIB = 1 << 20


class Loads(ScriptedEngine):
    """Remembers the hash of the weights in each folder that it was given."""

    def __init__(self) -> None:
        super().__init__([], version="0")
        self.loaded: list[str] = []

    async def load_weights(self, folder: Path, version: str) -> None:
        self.loaded.append(hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest())


class Cells:
    """Agents' weights in a chain (fan-out 1): c0 reads from the core, c1 from c0, c2 from c1. All hear every event at once."""

    def __init__(self, folder: Path, patience_s: float = 1000.0) -> None:
        (folder / "model").mkdir()
        (folder / "model/config.json").write_text("{}")
        self.core, self.events, self.folder = TcpTransfer(), [CoreElected(core_epoch=1, holder="h", cell="c0")], folder
        self.transfers = {cell: TcpTransfer() for cell in CELLS}
        self.engines = {cell: Loads() for cell in CELLS}
        self.weights = {
            cell: Weights(
                self.engines[cell], Snapshots(folder / "model", folder / cell, self.transfers[cell]),
                Speaker(cell, "i", self._say), Tree(CELLS, 1), patience_s,
            )
            for cell in CELLS
        }  # fmt: skip
        for position, cell in enumerate(CELLS):
            self.events.append(
                CellStarted(
                    cell=cell, position=position, incarnation="i", engine="native", engine_url="", capacity=1,
                    role=CellRole.SAMPLING, weight_version=0,
                )
            )  # fmt: skip

    async def _say(self, event: Event) -> None:
        self.events.append(event)

    def publish(self, version: int, nbytes: int) -> str:
        """A version of noise; its hash."""
        image = np.frombuffer(np.random.default_rng(version).bytes(nbytes), dtype=np.uint8).copy()
        descriptor = self.core.register(Region.of_array(image))
        digest = hashlib.sha256(image.data).hexdigest()
        none = np.zeros(0, np.int32), np.zeros(0, np.float32)
        self.events.append(
            Published(
                core_epoch=1, version=version, weights_hash=digest, descriptor=descriptor.to_bytes(), nbytes=nbytes,
                probe_ids=none[0], probe_logprobs=none[1],
            )
        )  # fmt: skip
        return digest

    def orders(self, cell: str) -> Orders:
        orders = Orders(cell, ClassPlan(batch=1, mu=1, phi=0, steps=9))
        for event in self.events:
            orders = obey(orders, event)
        return orders

    async def take(self, cell: str) -> bool:
        return await self.weights[cell].take(self.orders(cell))

    async def ready(self, cell: str) -> int | None:
        return await self.weights[cell].ready(self.orders(cell))

    def said(self, kind: type[Event]) -> list[str]:
        return [event.cell for event in self.events if isinstance(event, kind)]  # type: ignore[attr-defined]


@pytest.fixture
def cells(tmp_path):
    made = Cells(tmp_path)
    yield made
    for transfer in (made.core, *made.transfers.values()):
        transfer.close()


async def test_a_version_reaches_every_cell_though_the_core_served_one_alone(cells):
    digest = cells.publish(1, 3 * MIB + 5)
    assert not await cells.take("c2")
    assert not await cells.take("c1")
    assert await cells.take("c0")
    cells.core.close()
    assert await cells.take("c1")
    cells.transfers["c0"].close()
    assert await cells.take("c2")
    assert [engine.loaded for engine in cells.engines.values()] == [[digest]] * 3
    assert cells.said(WeightsHeld) == ["c0", "c1"]
    assert cells.said(WeightsLoaded) == ["c0", "c1", "c2"]


async def test_a_version_is_ready_once_it_stands_here_whole_and_not_by_then_loaded(cells):
    """Calls are let end for nothing where the version cannot be had."""
    assert await cells.ready("c0") is None
    cells.publish(1, MIB)
    assert await cells.ready("c0") == 1
    assert cells.engines["c0"].loaded == []
    assert await cells.take("c0")
    assert await cells.ready("c0") is None
    cells.publish(2, MIB)
    cells.core.close()
    assert await cells.ready("c0") is None


async def test_where_the_cell_above_is_away_the_core_is_read(cells):
    digest = cells.publish(1, MIB)
    await cells.take("c0")
    cells.transfers["c0"].close()
    assert await cells.take("c1")
    assert cells.engines["c1"].loaded == [digest]


async def test_where_the_cell_above_takes_too_long_the_core_is_read(tmp_path):
    cells = Cells(tmp_path, patience_s=0.0)
    digest = cells.publish(1, MIB)
    assert await cells.take("c1")
    assert cells.engines["c1"].loaded == [digest]
    for transfer in (cells.core, *cells.transfers.values()):
        transfer.close()


async def test_a_pull_that_broke_off_goes_on_at_the_core_and_no_engine_sees_a_part_of_it(cells, monkeypatch):
    """c0 dies after the first chunk that c1 has verified; the core stands. Every chunk crosses once."""
    digest = cells.publish(1, 48 * MIB)
    await cells.take("c0")
    crossed, whole = [], Progress.verified

    def verified(self, chunk, nbytes):
        crossed.append(chunk)
        if len(crossed) == 1:
            cells.transfers["c0"].close()
        whole(self, chunk, nbytes)

    monkeypatch.setattr(Progress, "verified", verified)
    assert await cells.take("c1")
    assert sorted(crossed) == list(range(48))
    assert cells.engines["c1"].loaded == [digest]


async def test_a_pull_that_broke_off_everywhere_leaves_the_engine_as_it_was_and_goes_on_later(cells, monkeypatch):
    """The core's buffer goes away in the middle; a core that comes up anew publishes the same version."""
    digest = cells.publish(1, 48 * MIB)
    crossed, whole = [], Progress.verified

    def verified(self, chunk, nbytes):
        crossed.append(chunk)
        if len(crossed) == 1:
            cells.core.close()
        whole(self, chunk, nbytes)

    monkeypatch.setattr(Progress, "verified", verified)
    assert not await cells.take("c0")
    assert 0 < len(crossed) < 48
    assert cells.engines["c0"].loaded == [] and not list(cells.folder.glob("c0/*/model.safetensors"))
    cells.core = TcpTransfer()
    cells.publish(1, 48 * MIB)
    assert await cells.take("c0")
    assert sorted(crossed) == list(range(48))
    assert cells.engines["c0"].loaded == [digest]


async def test_an_image_whose_hash_is_not_the_published_one_is_never_loaded(cells):
    cells.publish(1, MIB)
    cells.events[-1] = replace(cells.events[-1], weights_hash="0" * 64)
    snapshots = Snapshots(cells.folder / "model", cells.folder / "x", cells.transfers["c0"])
    with pytest.raises(IntegrityError, match="published as 0000"):
        snapshots.pull(cells.events[-1], cells.events[-1].descriptor)
    assert not await cells.take("c0")
    assert cells.engines["c0"].loaded == [] and not list(cells.folder.glob("*/*/model.safetensors"))


async def test_a_superseded_version_is_not_served_any_more(cells):
    cells.publish(1, MIB)
    await cells.take("c0")
    first = cells.weights["c0"].snapshots.hold(1)
    digest = cells.publish(2, MIB)
    await cells.take("c0")
    assert [p.name for p in cells.folder.glob("c0/*")] == ["version-000002"]
    assert cells.weights["c0"].snapshots._held.keys() == {2}
    assert cells.weights["c0"].snapshots.hold(2) != first
    assert await cells.take("c1")
    assert cells.engines["c1"].loaded == [digest]

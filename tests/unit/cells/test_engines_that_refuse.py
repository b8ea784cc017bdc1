"""An engine that refuses what its agent wants of it: weights, KV. The agent goes on reading, and asks less and less often."""

from __future__ import annotations

import hashlib
import time
from os import PathLike
from pathlib import Path

import numpy as np

from gyre_engine.events.cells import CellRole, KvExported, LifeChanged, LifeState, LifeTrigger, Move, MoveExecutions
from gyre_engine.events.training import CoreElected, Published
from gyre_engine.sampling.kv import KvTicket
from gyre_engine.sampling.port import EngineFailed, WeightsUnreadable
from gyre_engine.scheduling.life import LifeLimits
from gyre_engine.transfer import Region
from tests.unit.cells.test_cell_life import Engine, Led

S, T = LifeState, LifeTrigger
IMAGE = np.arange(64, dtype=np.uint8)


def published(cell: Led, version: int) -> Published:
    descriptor = cell._transfer.register(Region.of_array(IMAGE))
    return Published(
        core_epoch=1, version=version, weights_hash=hashlib.sha256(IMAGE.data).hexdigest(), descriptor=descriptor.to_bytes(),
        nbytes=64, probe_ids=np.zeros(0, np.int32), probe_logprobs=np.zeros(0, np.float32),
    )  # fmt: skip


async def test_weights_that_an_engine_refuses_leave_the_agent_listening_for_the_next(tmp_path: Path) -> None:
    class Picky(Engine):
        asked = 0

        async def load_weights(self, folder: str | PathLike[str], version: str) -> None:
            if version == "1":
                self.asked += 1
                raise WeightsUnreadable("not these")
            await super().load_weights(folder, version)

    engine = Picky()
    async with Led(tmp_path, engine) as cell:
        began = time.monotonic()
        cell.say(CoreElected(core_epoch=1, holder="p", cell="c0"), published(cell, 1))
        await cell.until(lambda: engine.asked >= 4)
        # At once, and then after 0.8 and 1.6 s from one to the next at least, where it span before.
        assert time.monotonic() - began > 2.0
        cell.say(published(cell, 2))
        await cell.until(lambda: cell.states()[-1] is S.SAMPLING and cell.agent._weights.version == 2)
        losses = [e for e in cell.said(LifeChanged) if isinstance(e, LifeChanged) and e.after is S.LOST]
        assert {e.detail for e in losses} == {"not these"} and len(losses) == engine.asked


async def test_kv_that_an_engine_does_not_let_go_costs_no_member(tmp_path: Path) -> None:
    class Stuck(Engine):
        async def release_kv(self, ticket: KvTicket) -> None:
            raise EngineFailed("somebody still reads it")

    async with Led(tmp_path, Stuck(busy=True), LifeLimits(exporting=0.2)) as cell:
        cell.command(CellRole.TRAINING)
        await cell.at(S.EXPORTING)
        moves = (Move("g0.0.0", "g0.0.0-abc.1", "c2", True),)
        cell.say(MoveExecutions(epoch=1, number=2, source="c1", drained=(1, 1), moves=moves))
        await cell.until(lambda: bool(cell.said(KvExported)))
        await cell.at(S.JOINING)
        cell.number = 2
        cell.command(CellRole.SAMPLING)
        await cell.at(S.SAMPLING)
        assert S.LOST not in cell.states()

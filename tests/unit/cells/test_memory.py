"""Memory that an engine shares with its cell's trainer: given in time, taken back in order, asked of each new engine."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from os import PathLike
from pathlib import Path

from gyre_engine.events.cells import CellRole, KvExported, KvImported, LifeState, Move, MoveExecutions
from gyre_engine.events.training import CoreElected
from gyre_engine.sampling.kv import KvTicket
from gyre_engine.sampling.port import InFlight
from tests.unit.cells.test_cell_life import Engine, Led
from tests.unit.cells.test_engines_that_refuse import published

S = LifeState


def sharing(tmp_path: Path, engine: Engine) -> Led:
    """A cell whose engine gives its memory to the trainer."""
    led = Led(tmp_path, engine)
    led._of = replace(led._of, release_memory=True)
    return led


class Notes(Engine):
    """Keeps what it is told from its first drain on."""

    calls: list[str] | None = None

    def note(self, call: str) -> None:
        if self.calls is not None:
            self.calls.append(call)

    async def drain(self) -> tuple[InFlight, ...]:
        self.calls = ["drain"]
        return await super().drain()

    async def release_kv(self, ticket: KvTicket) -> None:
        self.note("release-kv")
        await super().release_kv(ticket)

    async def release_memory(self) -> None:
        self.note("release-memory")

    async def reclaim_memory(self) -> None:
        self.note("reclaim-memory")

    async def load_weights(self, folder: str | PathLike[str], version: str) -> None:
        self.note(f"load {version}")
        await super().load_weights(folder, version)

    async def resume(self) -> None:
        self.note("resume")
        await super().resume()


async def move_what_was_drained(cell: Led) -> None:
    """The scheduler sends the one request to c2, which takes its KV."""
    moves = (Move("g0.0.0", "g0.0.0-abc.1", "c2", True),)
    cell.say(MoveExecutions(epoch=1, number=2, source="c1", drained=(1, 1), moves=moves))
    await cell.until(lambda: bool(cell.said(KvExported)))
    cell.say(
        KvImported(
            cell="c2", incarnation="i2", source="c1", command_epoch=1, command_number=1, execution="g0.0.0", rid="g0.0.0-abc.1",
            tokens=49, nbytes=1, took_us=1,
        )
    )  # fmt: skip


async def test_memory_is_given_back_after_kv_was_read_and_taken_back_before_weights_are_loaded(tmp_path: Path) -> None:
    """As SGLang demands: release only what is drained, resume only what was released, load before the first token."""
    engine = Notes(busy=True)
    async with sharing(tmp_path, engine) as cell:
        cell.say(CoreElected(core_epoch=1, holder="p", cell="c0"), published(cell, 0))
        cell.command(CellRole.TRAINING)
        await cell.at(S.EXPORTING)
        await move_what_was_drained(cell)
        await cell.at(S.JOINING)
        await cell.until(lambda: "release-memory" in (engine.calls or ()))
        cell.number = 2
        cell.command(CellRole.SAMPLING)
        await cell.at(S.SAMPLING)
        # The version is the same as before: it is loaded all the same.
        assert engine.calls == ["drain", "release-kv", "release-memory", "reclaim-memory", "load 0", "resume"]


async def test_an_engine_that_was_started_anew_while_its_cell_trained_is_asked_to_take_nothing_back(tmp_path: Path) -> None:
    class Sharing(Engine):
        released = reclaimed = 0

        async def release_memory(self) -> None:
            self.released += 1

        async def reclaim_memory(self) -> None:
            self.reclaimed += 1

    engine = Sharing()
    async with sharing(tmp_path, engine) as cell:
        cell.command(CellRole.TRAINING)
        await cell.at(S.JOINING)
        assert engine.released == 1
        engine.away = True
        await cell.at(S.LOST)
        engine.away = False
        await cell.at(S.JOINING)
        await cell.until(lambda: engine.released == 2)  # the new one has to give its memory, too
        assert engine.reclaimed == 0


async def test_memory_is_given_before_the_trainer_is_told_to_train(tmp_path: Path) -> None:
    class Slow(Engine):
        def __init__(self) -> None:
            super().__init__()
            self.asked, self.may = asyncio.Event(), asyncio.Event()

        async def release_memory(self) -> None:
            self.asked.set()
            await self.may.wait()

    engine = Slow()
    async with sharing(tmp_path, engine) as cell:
        cell.command(CellRole.TRAINING)
        await engine.asked.wait()
        assert cell.states()[-1] is S.EXPORTING
        engine.may.set()
        await cell.at(S.JOINING)

"""An agent outlives its engine: it takes up each new one within a limit, and ends when it is told to while it waits for one."""

import asyncio
import socket
import time
from pathlib import Path

import pytest

from gyre_engine.events.cells import CellHealth, CellRole, CellStarted
from gyre_engine.log.memory import MemoryLog
from gyre_engine.sampling.port import EngineNotServing, EngineStats, InferenceEngine
from gyre_engine.sampling.scripted import ScriptedEngine
from gyre_engine.sampling.sglang import SGLangEngine
from gyre_engine.scheduling.classes import ClassPlan
from gyre_engine.scheduling.life import LifeLimits
from gyre_engine.transfer.tcp import TcpTransfer
from producers.cells.agent import CellAgent, EngineAway
from producers.cells.settings import AgentSettings


class Falling(ScriptedEngine):
    """Answers `stats`, then goes away while it is taken up: at its next `falls` pauses."""

    def __init__(self, falls: int) -> None:
        super().__init__([], version="0")
        self.falls = falls

    async def pause(self, *, abort: bool) -> None:
        if self.falls:
            self.falls -= 1
            raise EngineNotServing("connection refused")
        await super().pause(abort=abort)

    async def restart(self, falls: int) -> None:
        """Another life begins: nobody has paused it yet, and it goes away `falls` times more."""
        self.falls, self._version = falls, "0"
        self._running.clear()


def settings(tmp_path: Path, limit: float = 30.0, url: str = "http://engine:1") -> AgentSettings:
    return AgentSettings(
        cell="c1", position=1, incarnation="i", engine="native", engine_url=url, capacity=4, model_path=str(tmp_path),
        scratch=str(tmp_path / "scratch"), plan=ClassPlan(batch=1, mu=1, phi=0, steps=9),
        limits=LifeLimits(starting=limit), health_s=0.0,
        poll_s=0.01,
    )  # fmt: skip


class Life:
    """An agent that runs, on a log of its own, until the `async with` ends."""

    def __init__(self, of: AgentSettings, engine: InferenceEngine) -> None:
        self.log, self._of, self._engine = MemoryLog(), of, engine
        self.ending, self._transfer = asyncio.Event(), TcpTransfer()

    async def __aenter__(self) -> "Life":
        agent = CellAgent(self._of, self.log, self._engine, self._transfer)
        self.running = asyncio.create_task(agent.run(self.ending))
        return self

    async def __aexit__(self, *_: object) -> None:
        self.ending.set()
        await asyncio.gather(self.running, return_exceptions=True)
        self._transfer.close()

    def said(self, kind: type) -> list[object]:
        return [r.event for r in self.log.read("cells") if isinstance(r.event, kind)]

    async def until_said(self, kind: type, count: int) -> None:
        async with asyncio.timeout(20):
            while len(self.said(kind)) < count and not self.running.done():
                await asyncio.sleep(0.01)


async def test_an_engine_that_goes_away_while_it_is_taken_up_is_taken_up_again(tmp_path: Path) -> None:
    engine = Falling(falls=2)
    async with Life(settings(tmp_path), engine) as life:
        await life.until_said(CellStarted, 1)
        assert not life.running.done()
        (started,) = life.said(CellStarted)
        assert isinstance(started, CellStarted)
        assert started.role is CellRole.SAMPLING
        assert engine.falls == 0


async def test_the_next_life_of_an_engine_is_taken_up_though_it_goes_away_once_more(tmp_path: Path) -> None:
    engine = Falling(falls=0)
    async with Life(settings(tmp_path), engine) as life:
        await life.until_said(CellHealth, 1)
        await engine.restart(falls=2)
        await life.until_said(CellStarted, 2)
        assert not life.running.done()
        assert not (await engine.stats()).paused


async def test_the_limit_names_the_engine_and_its_last_error(tmp_path: Path) -> None:
    async with Life(settings(tmp_path, limit=0.5), Falling(falls=1_000_000)) as life:
        with pytest.raises(EngineAway, match=r"c1: its engine at http://engine:1 was not up after .*connection refused"):
            await asyncio.wait_for(asyncio.shield(life.running), 20)


@pytest.mark.parametrize("listens", [False, True], ids=["nobody listens", "silent"])
async def test_an_agent_that_waits_for_its_engine_ends_within_a_second(tmp_path: Path, listens: bool) -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        if listens:
            held.listen()
        url = "http://{}:{}".format(*held.getsockname())
        async with Life(settings(tmp_path, url=url), _Asked(SGLangEngine(url))) as life:
            await life._engine.asked.wait()  # type: ignore[attr-defined]
            told = time.monotonic()
            life.ending.set()
            await asyncio.wait_for(asyncio.shield(life.running), 20)
            assert time.monotonic() - told < 1.0
            assert life.said(CellStarted) == []


class _Asked:
    """The engine, and when it was first asked for its stats."""

    def __init__(self, engine: SGLangEngine) -> None:
        self._of, self.asked = engine, asyncio.Event()

    async def stats(self) -> EngineStats:
        self.asked.set()
        return await self._of.stats()

    async def close(self) -> None:
        await self._of.close()

"""A call on a cell that does not answer any more: its engine is stopped (SIGSTOP), its agent is dead, or its whole host is gone. It
goes on elsewhere from the very token, and the agent sees one slow call.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from gyre_engine.events.cells import CellHealth, CellLost, CellRole
from gyre_engine.sampling.port import GenerateRequest
from gyre_engine.sampling.scripted import Gate, Script, ScriptedEngine
from producers.proxy import generation
from tests.unit.proxy.conftest import MakeStack, Stack, started, until, user
from tests.unit.proxy.test_proxy_routes import sampled

WHOLE = tuple(range(10, 30))


@pytest.fixture(autouse=True)
def grace(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(generation, "AWAY_GRACE_S", 0.05)
    yield


def health(healthy: bool) -> CellHealth:
    return CellHealth(cell="core", incarnation="core-1", healthy=healthy)


def lost(words: int) -> CellLost:
    return CellLost(epoch=1, number=1, cell="core", incarnation="core-1", words=words, silent_us=120_000_000)


class Stopped:
    """A call of which `core` has sampled five tokens; nothing more comes from there. Another cell samples the rest."""

    def __init__(self, make_stack: MakeStack) -> None:
        self.stack, self.gate = make_stack(cells=False), Gate()
        self.core = self.stack.cell("core", 0, engine=ScriptedEngine([Script(WHOLE, piece=1)], version="3", gate=self.gate))

    async def begin(self) -> asyncio.Future[httpx.Response]:
        asked = asyncio.ensure_future(self.stack.chat([user("q")]))
        await until(lambda: bool(self.core.requests))
        await self.gate.release(5)
        await until(lambda: sampled(self.stack) == 5)
        prompt = len(self.core.requests[0].input_ids)

        def rest(request: GenerateRequest) -> Script:
            return Script(WHOLE[len(request.input_ids) - prompt :], piece=1)

        self.stack.cell("b", 1, engine=ScriptedEngine(rest, version="3"))
        return asked

    def hear(self, *events: Any) -> None:
        self.stack.service.desk.router.apply(events)


@pytest.mark.parametrize("word", [health(False), lost(words=1)], ids=["its engine does not answer", "it says nothing"])
async def test_a_call_leaves_a_cell_that_is_away_and_goes_on_from_the_very_token(make_stack: MakeStack, word: Any) -> None:
    stopped = Stopped(make_stack)
    asked = await stopped.begin()
    stopped.hear(word)
    assert (await asyncio.wait_for(asked, 10)).status_code == 200
    [record] = stopped.stack.calls()
    assert record.output_ids.tolist() == list(WHOLE)
    assert [(span.start, span.cell) for span in record.weight_spans] == [(0, "core"), (5, "b")]
    assert record.queued_us >= 50_000, "the agent was held up while its engine was away"
    assert stopped.core.aborted == [stopped.core.requests[0].rid]


class Waits:
    """The graces that calls wait: each ends when it is told to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun, self._end = 0, asyncio.Semaphore(0)
        self._sleep = asyncio.sleep
        monkeypatch.setattr(generation.asyncio, "sleep", self.sleep)

    async def sleep(self, seconds: float) -> None:
        if seconds != generation.AWAY_GRACE_S:
            return await self._sleep(seconds)
        self.begun += 1
        await self._end.acquire()

    def end(self) -> None:
        self._end.release()


async def test_a_call_that_still_gets_tokens_stays_though_the_agent_is_silent(
    make_stack: MakeStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits, stopped = Waits(monkeypatch), Stopped(make_stack)
    asked = await stopped.begin()
    stopped.hear(lost(words=1))
    for graces in range(1, 4):
        await until(lambda graces=graces: waits.begun == graces)  # type: ignore[misc]
        await stopped.gate.release(1)
        await until(lambda graces=graces: sampled(stopped.stack) == 5 + graces)  # type: ignore[misc]
        waits.end()
    await stopped.gate.open()
    assert (await asyncio.wait_for(asked, 10)).status_code == 200
    [record] = stopped.stack.calls()
    assert [span.cell for span in record.weight_spans] == ["core"] and record.output_ids.tolist() == list(WHOLE)


async def test_a_cell_that_speaks_again_in_time_keeps_its_calls(make_stack: MakeStack, monkeypatch: pytest.MonkeyPatch) -> None:
    """The pause ends within the grace."""
    waits, stopped = Waits(monkeypatch), Stopped(make_stack)
    asked = await stopped.begin()
    stopped.hear(lost(words=1))
    await until(lambda: waits.begun == 1)
    stopped.hear(health(True))
    waits.end()
    for _ in range(20):
        await asyncio.sleep(0)
    await stopped.gate.open()
    assert (await asyncio.wait_for(asked, 10)).status_code == 200
    [record] = stopped.stack.calls()
    assert [span.cell for span in record.weight_spans] == ["core"]


async def test_no_new_call_goes_to_a_lost_cell_until_it_speaks(make_stack: MakeStack) -> None:
    stack: Stack = make_stack(cells=False, wait_limit_s=0.05)
    stack.cell("core", 0)
    router = stack.service.desk.router
    router.apply([lost(words=1)])
    refused = await stack.chat([user("q")])
    assert refused.status_code == 503 and "core away v0" in refused.json()["error"]["message"]
    router.apply([health(True)])
    lease = router.at_once("e")
    assert lease is not None and lease.cell == "core" and not lease.away.is_set()


async def test_a_restarted_cell_is_not_away_though_its_last_life_was(make_stack: MakeStack) -> None:
    stack = make_stack()
    router = stack.service.desk.router
    router.apply([started("core", 0), health(False)])
    lease = router.at_once("e")
    assert lease is not None and lease.cell == "a"
    router.apply([started("core", 0, role=CellRole.SAMPLING)])
    assert router.routes.fleet.serves("core") and not router.routes.fleet.away("core")

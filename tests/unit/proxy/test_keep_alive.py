"""Ninety silent seconds on a clock that jumps: a stream shows life all the while, and there is one answer and one record."""

from __future__ import annotations

import asyncio
import itertools
import selectors
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from gyre_engine.events.calls import ModelCall
from gyre_engine.events.cells import CellRole
from gyre_engine.log.memory import MemoryLog
from gyre_engine.sampling.scripted import Gate, Script, ScriptedEngine
from producers.proxy.app import application
from producers.proxy.call import Desk
from producers.proxy.outbox import Outbox
from producers.proxy.rendering import Rendering
from producers.proxy.router import Router
from producers.proxy.service import Service
from producers.proxy.settings import ProxySettings
from tests.unit.proxy.conftest import SECRET, started
from tests.unit.proxy.test_cases_in_every_dialect import DIALECTS
from tests.unit.proxy.test_proxy_cases import scope
from tests.unit.proxy.test_proxy_routes import receiver, switch

SILENCE_S = 90.0
LONGEST_S = 15.0


class Jumping(selectors.DefaultSelector):
    """Where nothing is ready and a timer is set, its moment has come."""

    now = 0.0

    def select(self, timeout: float | None = None) -> Any:
        found = super().select(0)
        if not found and timeout:
            self.now += timeout
        return found


def on_a_jumping_clock(work: Callable[[asyncio.AbstractEventLoop], Coroutine[Any, Any, None]]) -> None:
    """Run on a loop whose seconds pass at once."""
    selector = Jumping()
    loop = asyncio.SelectorEventLoop(selector)
    loop.time = lambda: selector.now  # type: ignore[method-assign]
    try:
        loop.run_until_complete(work(loop))
    finally:
        loop.close()


class Listener:
    """A client of a stream that notes when what came."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.seen: list[tuple[float, str]] = []

    async def send(self, message: Any) -> None:
        if body := message.get("body", b"").decode():
            self.seen.append((self._loop.time(), body))

    @property
    def text(self) -> str:
        return "".join(body for _, body in self.seen)


SIGNS = {
    "chat": (": waiting", '"role":"assistant"', "data: [DONE]"),
    "messages": ("event: ping", "event: message_start", "event: message_stop"),
    "responses": ("event: response.in_progress", "event: response.created", "event: response.completed"),
}
"""Of each dialect: what its clients take for life, what a stream begins with, and how it ends."""


@pytest.mark.parametrize("dialect", SIGNS)
@pytest.mark.parametrize("cause", ["prefill", "role switch"])
def test_c10_a_sign_of_life_comes_in_every_quarter_of_a_minute_from_before_the_first_token(
    rendering: Rendering, dialect: str, cause: str
) -> None:
    """C10: no token for 90 s, since the prefill is long, or since the cell was told to train and no other one samples."""
    log, gate = MemoryLog(), Gate()
    ids = (*rendering.tokenizer.encode("ok"), rendering.stop_ids[0])
    engines = {name: ScriptedEngine(lambda _: Script(ids), gate=gate) for name in "ab"}
    router = Router(lambda url: engines[url.removeprefix("scripted://")])
    service = Service(ProxySettings(Path("unused"), Path("unused")), Desk(router, Outbox(log), rendering), environment={})
    wire = DIALECTS[dialect]
    body = wire.body('"q"', True)
    at = {**scope("g.0.0", body), "path": wire.path, "raw_path": wire.path.encode()}
    alive, begins, ends = SIGNS[dialect]
    clients: list[Listener] = []

    async def work(loop: asyncio.AbstractEventLoop) -> None:
        router.apply([started("a", 0)])
        clients.append(Listener(loop))
        serving = asyncio.ensure_future(application(service, SECRET)(at, receiver(body, asyncio.Event()), clients[0].send))
        while not engines["a"].requests:
            await asyncio.sleep(0)
        if cause == "role switch":
            router.apply([switch("a", CellRole.TRAINING, 0)])
            await engines["a"].pause(abort=True)
        await asyncio.sleep(SILENCE_S)
        if cause == "role switch":
            router.apply([started("b", 1)])
        await gate.open()
        await serving

    on_a_jumping_clock(work)
    [client] = clients
    marks = [0.0, *[when for when, said in client.seen if alive in said], SILENCE_S]
    assert max(after - before for before, after in itertools.pairwise(marks)) <= LONGEST_S
    assert client.text.count(begins) == client.text.count(ends) == 1
    [record] = [r.event for r in log.read("model-calls") if isinstance(r.event, ModelCall)]
    assert record.output_ids.tolist() == list(ids) and record.engine_calls == (2 if cause == "role switch" else 1)


@pytest.mark.parametrize("dialect", SIGNS)
def test_c10_a_stream_that_waits_for_the_log_shows_life_before_its_call_begins(rendering: Rendering, dialect: str) -> None:
    """C10: the log is away for 90 s: the call of another execution has found that out before this one is asked."""
    log = MemoryLog()
    ids = (*rendering.tokenizer.encode("ok"), rendering.stop_ids[0])
    engine = ScriptedEngine(lambda _: Script(ids))
    router = Router(lambda _: engine)
    service = Service(ProxySettings(Path("unused"), Path("unused")), Desk(router, Outbox(log), rendering), environment={})
    wire, (_, begins, ends) = DIALECTS[dialect], SIGNS[dialect]
    body = wire.body('"q"', True)
    clients: list[Listener] = []

    async def ask(loop: asyncio.AbstractEventLoop, execution: str) -> None:
        at = {**scope(execution, body), "path": wire.path, "raw_path": wire.path.encode()}
        clients.append(Listener(loop))
        await application(service, SECRET)(at, receiver(body, asyncio.Event()), clients[-1].send)

    async def work(loop: asyncio.AbstractEventLoop) -> None:
        router.apply([started("a", 0)])
        log.store.hold()
        first = asyncio.ensure_future(ask(loop, "g.0.0"))
        while not service.desk.outbox.away:
            await asyncio.sleep(0.1)
        second = asyncio.ensure_future(ask(loop, "g.1.0"))
        began = loop.time()
        await asyncio.sleep(SILENCE_S)
        log.store.release()
        await asyncio.gather(first, second)
        marks = [began, *[when for when, _ in clients[1].seen], began + SILENCE_S]
        assert max(after - before for before, after in itertools.pairwise(marks)) <= LONGEST_S

    on_a_jumping_clock(work)
    assert len(engine.requests) == 2
    assert clients[1].text.startswith(": waiting\n\n")
    assert clients[1].text.count(begins) == clients[1].text.count(ends) == 1
    assert [r.event.execution for r in log.read("model-calls") if isinstance(r.event, ModelCall)] == ["g.0.0", "g.1.0"]


@pytest.mark.parametrize("dialect", SIGNS)
def test_a_stream_that_was_opened_while_it_waited_is_refused_inside_it(rendering: Rendering, dialect: str) -> None:
    """The log stays away for longer than the proxy waits: the error and the end come in the stream's own words."""
    log = MemoryLog()
    settings = ProxySettings(Path("unused"), Path("unused"), wait_limit_s=30.0)
    service = Service(settings, Desk(Router(lambda _: ScriptedEngine([])), Outbox(log), rendering), environment={})
    wire = DIALECTS[dialect]
    body = wire.body('"q"', True)
    clients: list[Listener] = []

    async def work(loop: asyncio.AbstractEventLoop) -> None:
        log.store.hold()
        opening = asyncio.ensure_future(service.close("g.0.0"))
        while not service.desk.outbox.away:
            await asyncio.sleep(0.1)
        at = {**scope("g.1.0", body), "path": wire.path, "raw_path": wire.path.encode()}
        clients.append(Listener(loop))
        await application(service, SECRET)(at, receiver(body, asyncio.Event()), clients[0].send)
        log.store.release()
        await asyncio.gather(opening, return_exceptions=True)
        await service.settle(60)

    on_a_jumping_clock(work)
    text = clients[0].text
    assert text.startswith(": waiting\n\n") and text.endswith(wire.end)
    assert "the event log did not answer" in text and text.count(BROKEN[dialect]) == 1


BROKEN = {"chat": '"error"', "messages": "event: error", "responses": "event: response.failed"}
"""How a stream of each dialect says that there will be no answer."""

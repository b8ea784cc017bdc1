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

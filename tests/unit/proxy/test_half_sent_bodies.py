"""A client that sends half a body and stays: it is told so in its dialect after a while without a byte, and let go."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterable, MutableMapping
from pathlib import Path
from typing import Any

import orjson
import pytest
import uvicorn

from gyre_engine.keys import mint
from gyre_engine.log.memory import MemoryLog
from producers.proxy.app import application
from producers.proxy.call import Desk
from producers.proxy.outbox import Outbox
from producers.proxy.rendering import Rendering
from producers.proxy.router import Router
from producers.proxy.service import Service
from producers.proxy.settings import ProxySettings
from tests.unit.proxy.conftest import SECRET, MakeStack
from tests.unit.proxy.test_keep_alive import on_a_jumping_clock
from tests.unit.proxy.test_proxy_cases import scope

ERRORS = {
    "/v1/chat/completions": {"type": "invalid_request_error", "code": "request_timeout"},
    "/v1/responses": {"type": "invalid_request_error", "code": "request_timeout"},
    "/v1/messages": {"type": "timeout_error"},
    "/v1/messages/count_tokens": {"type": "timeout_error"},
}


class Sender:
    """An ASGI client that sends a piece of its body every `pace` seconds and then stays; notes what it is told, and when."""

    def __init__(self, loop: asyncio.AbstractEventLoop, pieces: Iterable[bytes], pace: float) -> None:
        self._loop = loop
        self._pieces = iter(pieces)
        self._pace = pace
        self.told: list[MutableMapping[str, Any]] = []
        self.at = 0.0

    async def receive(self) -> dict[str, Any]:
        await asyncio.sleep(self._pace)
        for piece in self._pieces:
            return {"type": "http.request", "body": piece, "more_body": True}
        await asyncio.Event().wait()
        raise AssertionError

    async def send(self, message: MutableMapping[str, Any]) -> None:
        self.told.append(message)
        self.at = self._loop.time()


@pytest.mark.parametrize("path", ERRORS)
def test_a_body_that_stops_coming_is_refused_after_a_while_without_a_byte(rendering: Rendering, path: str) -> None:
    """Ten pieces, one every 50 s, the last at 500: each is waited for, and what never follows for 60 s."""

    async def work(loop: asyncio.AbstractEventLoop) -> None:
        service = Service(ProxySettings(Path("unused"), Path("unused")), desk(rendering), environment={})
        sender = Sender(loop, [b'{"model":"policy",', *[b" "] * 9], 50)
        await application(service, SECRET)({**scope("g.0.0", b""), "path": path}, sender.receive, sender.send)
        start, body = sender.told
        assert sender.at == pytest.approx(560) and start["status"] == 408
        assert (b"connection", b"close") in start["headers"]
        error = orjson.loads(body["body"])["error"]
        assert error.items() >= ERRORS[path].items() and "60 s" in error["message"]

    on_a_jumping_clock(work)


async def test_the_connection_is_closed(make_stack: MakeStack) -> None:
    stack = make_stack(body_wait_s=0.05)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = uvicorn.Server(uvicorn.Config(stack.app, http="httptools", lifespan="off", log_config=None, ws="none"))
        serving = asyncio.ensure_future(server.serve([listener]))
        try:
            async with asyncio.timeout(10):
                status, text = await half_a_request(listener.getsockname()[1])
                assert (status, text.count(b"HTTP/1.1")) == (408, 1)
        finally:
            server.should_exit = True
            await serving


async def half_a_request(port: int) -> tuple[int, bytes]:
    """All that a client is told that sends half a body and reads until the connection is closed."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    key = mint(SECRET, "g.0.0")
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {key}\r\ncontent-length: 1000\r\n\r\n"
    writer.write(head.encode() + b'{"model":')
    told = await reader.read()
    writer.close()
    return int(told.split()[1]), told


def desk(rendering: Rendering) -> Desk:
    return Desk(Router(lambda url: pytest.fail(f"nothing is asked of {url}")), Outbox(MemoryLog()), rendering)

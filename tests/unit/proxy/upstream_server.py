"""Somebody's chat endpoint, as a real HTTP server on a free port that answers what it is told to."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import orjson
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route


@dataclass
class UpstreamServer:
    """url: what a config names. asked: the bodies that came; headers: what came with each. held: it does not answer while set."""

    url: str
    answers: list[Response] = field(default_factory=list)
    asked: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    release: asyncio.Event = field(default_factory=asyncio.Event)
    left: int = 0

    @property
    def host(self) -> str:
        return self.url.removeprefix("http://").removesuffix("/v1")

    def says(self, text: str | None, *calls: tuple[str, str], finish: str = "stop", **message: Any) -> None:
        """The next answer, with tool calls (name, arguments) whose ids are always the same, as those of bad servers are."""
        asked = [
            {"id": f"call_{at}", "type": "function", "function": {"name": name, "arguments": arguments}}
            for at, (name, arguments) in enumerate(calls)
        ]
        whole = {"role": "assistant", "content": text, **({"tool_calls": asked} if asked else {}), **message}
        usage = {"prompt_tokens": 11, "completion_tokens": 5, "total_tokens": 16, "prompt_tokens_details": {"cached_tokens": 4}}
        choice = {"index": 0, "message": whole, "finish_reason": "tool_calls" if asked else finish}
        self.sends(200, {"id": "x", "object": "chat.completion", "choices": [choice], "usage": usage})

    def sends(self, status: int, body: Any, **headers: str) -> None:
        """The next response, as it is."""
        content = body if isinstance(body, bytes) else orjson.dumps(body)
        self.answers.append(Response(content, status, {name.replace("_", "-"): value for name, value in headers.items()}))

    async def endpoint(self, request: Request) -> Response:
        self.asked.append(orjson.loads(await request.body()))
        self.headers.append(dict(request.headers))
        waiting = asyncio.ensure_future(self.release.wait())
        leaving = asyncio.ensure_future(_gone(request))
        await asyncio.wait({waiting, leaving}, return_when=asyncio.FIRST_COMPLETED)
        self.left += not waiting.done()
        waiting.cancel()
        leaving.cancel()
        return self.answers.pop(0) if self.answers else Response(status_code=500)


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Any:
        yield


@contextlib.asynccontextmanager
async def hosted(app: Starlette) -> AsyncIterator[str]:
    """An application on a free port; its URL."""
    listener = socket.create_server(("127.0.0.1", 0))
    server = _Server(uvicorn.Config(app, lifespan="off", log_config=None, ws="none", timeout_graceful_shutdown=2))
    running = asyncio.ensure_future(server.serve([listener]))
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        await running
        listener.close()


@contextlib.asynccontextmanager
async def serving() -> AsyncIterator[UpstreamServer]:
    """A server that answers at once; clear `release` to let it wait."""
    made = UpstreamServer("")
    made.release.set()
    async with hosted(Starlette(routes=[Route("/v1/chat/completions", made.endpoint, methods=["POST"])])) as url:
        made.url = f"{url}/v1"
        try:
            yield made
        finally:
            made.release.set()

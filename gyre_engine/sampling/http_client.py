"""HTTP/1.1 to one engine: requests with JSON bodies, answers whole or as server-sent events.

promises  a request that is left before its answer's end closes its connection; a connection that the server may have closed
          meanwhile is not used again; what fails on the way is an HttpLost
"""

from __future__ import annotations

import io
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import aiohttp
import orjson

CONNECT_SECONDS = 5.0
IDLE_SECONDS = 3.0
"""How long a connection is kept for the next request: uvicorn, which engines serve with, closes after 5 s."""
_HEADERS = {"content-type": "application/json", "accept-encoding": "identity"}


class HttpLost(Exception):
    """No answer, or half of one."""


class Answer:
    """An answer whose body comes in as it is read."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._response = response
        self.status = response.status

    async def whole(self) -> bytes:
        """The body."""
        return await self._response.read()

    async def events(self) -> AsyncIterator[dict[str, Any]]:
        """Server-sent events of one line each; a body of JSON is one event."""
        if not self._response.headers.get("content-type", "").startswith("text/event-stream"):
            yield orjson.loads(await self.whole())
            return
        rest = b""
        async for data in self._response.content.iter_any():
            *found, rest = (rest + data).split(b"\n\n")
            for event in found:
                payload = event.removeprefix(b"data: ").strip()
                if payload and payload != b"[DONE]":
                    yield orjson.loads(payload)


class HttpClient:
    """Connections to one server, opened with the first request (on whose event loop they then live)."""

    def __init__(self, url: str) -> None:
        self._url = url.rstrip("/")
        self._session: aiohttp.ClientSession | None = None

    def post(self, path: str, body: bytes, silence: float) -> AbstractAsyncContextManager[Answer]:
        """The answer to a body of JSON. silence: seconds without a byte until HttpLost."""
        return self._asked("POST", path, body, silence)

    def get(self, path: str, silence: float) -> AbstractAsyncContextManager[Answer]:
        """The answer to a question without a body."""
        return self._asked("GET", path, None, silence)

    async def aclose(self) -> None:
        """Close all connections."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    @asynccontextmanager
    async def _asked(self, method: str, path: str, body: bytes | None, silence: float) -> AsyncIterator[Answer]:
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS, sock_read=silence)
        data = None if body is None else io.BytesIO(body)  # long prompts are megabytes: sent piece by piece
        session = self._opened()
        try:
            async with session.request(method, self._url + path, data=data, headers=_HEADERS, timeout=timeout) as response:
                yield Answer(response)
        except (aiohttp.ClientError, TimeoutError) as error:
            raise HttpLost(f"{type(error).__name__}: {error}") from error

    def _opened(self) -> aiohttp.ClientSession:
        if self._session is None:
            connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=IDLE_SECONDS)
            self._session = aiohttp.ClientSession(
                connector=connector, cookie_jar=aiohttp.DummyCookieJar(), auto_decompress=False, read_bufsize=1 << 18
            )
        return self._session

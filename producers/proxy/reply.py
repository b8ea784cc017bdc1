"""How an answer reaches its client: whole or streamed, and what happens when the client goes away.

promises  a client that is gone leaves its call at once; an answer counts as delivered only when its last byte was
          handed over to a client that was still there; a stream opens within `quiet_s` and never falls silent for
          longer
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from types import ModuleType

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from producers.proxy.call import Call
from producers.proxy.exchange import Answer, ProxyError

JSON = b"application/json"
EVENTS = b"text/event-stream; charset=utf-8"


class Reply(Response):
    """The answer to one client, in the words of its dialect."""

    def __init__(self, call: Call, dialect: ModuleType, model: str, *, stream: bool, usage: bool, quiet_s: float) -> None:
        self._call = call
        self._dialect = dialect
        self._model = model
        self._stream = stream
        self._usage = usage
        self._quiet_s = quiet_s
        self._gone = asyncio.Event()
        self._opened = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        answering = asyncio.ensure_future(self._answer(send))
        watching = asyncio.ensure_future(self._watch(receive))
        try:
            await asyncio.wait({answering, watching}, return_when=asyncio.FIRST_COMPLETED)
            if answering.done():
                answering.result()
        finally:
            for task in (answering, watching):
                task.cancel()
            await asyncio.wait({answering, watching})
            self._call.leave()

    async def _watch(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self._gone.set()

    async def _answer(self, send: Send) -> None:
        with contextlib.suppress(OSError):
            if self._stream:
                await self._streamed(send)
            else:
                await self._whole(send)

    async def _whole(self, send: Send) -> None:
        outcome = await self._outcome()
        if isinstance(outcome, ProxyError):
            self._count(outcome)
            await _respond(send, outcome.status, self._dialect.error(outcome), retry_after=outcome.retry_after)
            return
        await _respond(send, 200, self._dialect.answer(outcome, self._model))
        self._delivered()

    async def _outcome(self) -> Answer | ProxyError:
        seen = len(self._call.heard)
        while (found := self._call.outcome or self._call.excuse) is None:
            await self._call.news(seen, None)
            seen = len(self._call.heard)
        return found

    async def _streamed(self, send: Send) -> None:
        async for data in self._chunks(send):
            if not self._opened:
                await _open(send)
                self._opened = True
            await send({"type": "http.response.body", "body": data, "more_body": True})
        if self._opened:
            await send({"type": "http.response.body", "body": b"", "more_body": False})
            if isinstance(self._call.outcome, Answer):
                self._delivered()

    async def _chunks(self, send: Send) -> AsyncIterator[bytes]:
        call, dialect, model = self._call, self._dialect, self._model
        name, created, seen = call.job.rid, call.requested_at // 1_000_000, 0
        first = dialect.opening(name, created, model)
        while True:
            if not await call.news(seen, self._quiet_s):
                yield first + dialect.KEEP_ALIVE
                first = b""
                continue
            pieces = call.heard[seen:]
            seen += len(pieces)
            found = call.outcome or call.excuse
            if isinstance(found, ProxyError) and not self._opened and not pieces:
                self._count(found)
                await _respond(send, found.status, dialect.error(found), retry_after=found.retry_after)
                return
            data = first + b"".join(dialect.delta(piece, name, created, model) for piece in pieces)
            first = b""
            if found is None:
                yield data
                continue
            yield data + self._ending(found, name, created)
            return

    def _ending(self, found: Answer | ProxyError, name: str, created: int) -> bytes:
        if isinstance(found, ProxyError):
            self._count(found)
            broken: bytes = self._dialect.broken_stream(found)
            return broken
        return b"".join(self._dialect.closing(found, name, created, self._model, self._usage))

    def _count(self, problem: ProxyError) -> None:
        """What the proxy could not do, as the agent sees it; what the agent did wrong is its own."""
        if problem.status >= 500:
            self._call.execution.errors += 1

    def _delivered(self) -> None:
        if not self._gone.is_set():
            self._call.execution.drop(self._call.ask.digest, self._call)


async def _open(send: Send) -> None:
    headers = [(b"content-type", EVENTS), (b"cache-control", b"no-cache"), (b"x-accel-buffering", b"no")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})


async def _respond(send: Send, status: int, body: bytes, *, retry_after: int | None = None) -> None:
    headers = [(b"content-type", JSON), (b"content-length", str(len(body)).encode())]
    if retry_after is not None:
        headers.append((b"retry-after", str(retry_after).encode()))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": False})

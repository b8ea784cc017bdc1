"""How an answer reaches its client: whole or streamed, and what happens when the client goes away.

promises  a client that is gone leaves its call at once; an answer counts as delivered only when its last byte was
          handed over to a client that was still there; a stream opens within `quiet_s` and never falls silent for
          longer, also while its call waits for the log before it begins
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Coroutine
from dataclasses import replace
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from producers.proxy.dialects.port import Dialect, Stream, Whole
from producers.proxy.exchange import Answer, Ask, ProxyError
from producers.proxy.shared_call import SharedCall

JSON = b"application/json"
EVENTS = b"text/event-stream; charset=utf-8"
WAITING = b": waiting\n\n"
"""A comment: life in every dialect while there is no call yet that an event could name."""


class Reply(Response):
    """The answer to one client, in the words of its dialect."""

    def __init__(self, begun: Coroutine[Any, Any, SharedCall], dialect: Dialect, ask: Ask, *, quiet_s: float) -> None:
        """`begun`: the call, once there is one; or its refusal."""
        self._begun = asyncio.ensure_future(begun)
        self._dialect = dialect
        self._ask = ask
        self._quiet_s = quiet_s
        self._gone = asyncio.Event()
        self._opened = False
        self._left = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        answering = asyncio.ensure_future(self._answer(send))
        watching = asyncio.ensure_future(self._watch(receive))
        try:
            await asyncio.wait({answering, watching}, return_when=asyncio.FIRST_COMPLETED)
            if answering.done() and not answering.cancelled():
                answering.result()
        finally:
            for task in (answering, watching):
                task.cancel()
            await asyncio.wait({answering, watching})
            self._leave()

    def _leave(self) -> None:
        """The call, or the wait for one. Once, and at once: the client may be asking something else already."""
        if self._left:
            return
        self._left = True
        if not self._begun.done():
            self._begun.cancel()
        elif not self._begun.cancelled() and self._begun.exception() is None:
            self._call.leave()

    @property
    def _call(self) -> SharedCall:
        """Once it has begun."""
        return self._begun.result()

    async def _watch(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self._gone.set()
        self._leave()

    async def _answer(self, send: Send) -> None:
        with contextlib.suppress(OSError):
            if (refusal := await self._refusal(send)) is not None:
                await self._respond_or_break(send, refusal)
            elif self._ask.stream:
                await self._streamed(send)
            else:
                await self._whole(send)

    async def _refusal(self, send: Send) -> ProxyError | None:
        """Why there is no call, once that is known; a stream shows life until then."""
        while not (await asyncio.wait({self._begun}, timeout=self._quiet_s if self._ask.stream else None))[0]:
            await self._send(send, WAITING)
        problem = self._begun.exception()
        if problem is None or isinstance(problem, ProxyError):
            return problem
        raise problem

    async def _respond_or_break(self, send: Send, problem: ProxyError) -> None:
        """A refusal that stands in no call's account."""
        if not self._opened:
            await _respond(send, self._dialect.error(problem))
            return
        stream = self._dialect.stream(self._ask, "refused", 0)
        await self._send(send, stream.opening() + stream.broken(problem))
        await _close(send)

    async def _send(self, send: Send, data: bytes) -> None:
        """A piece of a stream, which it opens."""
        if not self._opened:
            await _open(send)
            self._opened = True
        await send({"type": "http.response.body", "body": data, "more_body": True})

    async def _whole(self, send: Send) -> None:
        outcome = await self._outcome()
        if isinstance(outcome, ProxyError):
            await self._refuse(send, outcome)
            return
        await _respond(send, Whole(200, self._dialect.answer(outcome, self._ask)))
        self._delivered()

    async def _outcome(self) -> Answer | ProxyError:
        seen = len(self._call.heard)
        while (found := self._call.outcome or self._call.excuse) is None:
            await self._call.news(seen, None)
            seen = len(self._call.heard)
        return found

    async def _streamed(self, send: Send) -> None:
        async for data in self._chunks(send):
            await self._send(send, data)
        if self._opened:
            await _close(send)
            if isinstance(self._call.outcome, Answer):
                self._delivered()

    async def _chunks(self, send: Send) -> AsyncIterator[bytes]:
        call, seen = self._call, 0
        ask = replace(self._ask, prompt_tokens=call.prompt_tokens)
        stream = self._dialect.stream(ask, call.id, call.requested_at // 1_000_000)
        first = stream.opening()
        while True:
            if not await call.news(seen, self._quiet_s):
                yield first + stream.keep_alive()
                first = b""
                continue
            pieces = call.heard[seen:]
            seen += len(pieces)
            call.shown |= bool(pieces)
            found = call.outcome or call.excuse
            if isinstance(found, ProxyError) and not self._opened and not pieces:
                await self._refuse(send, found)
                return
            data = first + b"".join(stream.delta(piece) for piece in pieces)
            first = b""
            if found is None:
                yield data
                continue
            yield data + self._ending(stream, found)
            return

    def _ending(self, stream: Stream, found: Answer | ProxyError) -> bytes:
        if isinstance(found, ProxyError):
            self._count(found)
            return stream.broken(found)
        return stream.closing(found)

    async def _refuse(self, send: Send, problem: ProxyError) -> None:
        self._count(problem)
        await _respond(send, self._dialect.error(problem))

    def _count(self, problem: ProxyError) -> None:
        """What the proxy could not do, as the agent sees it; what the agent did wrong is its own."""
        if problem.status >= 500 and not self._gone.is_set():
            self._call.failed()

    def _delivered(self) -> None:
        if not self._gone.is_set():
            self._call.forget()


async def _open(send: Send) -> None:
    headers = [(b"content-type", EVENTS), (b"cache-control", b"no-cache"), (b"x-accel-buffering", b"no")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})


async def _close(send: Send) -> None:
    await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _respond(send: Send, whole: Whole) -> None:
    headers = [(b"content-type", JSON), (b"content-length", str(len(whole.body)).encode())]
    headers += [(name.encode(), value.encode()) for name, value in whole.headers.items()]
    await send({"type": "http.response.start", "status": whole.status, "headers": headers})
    await send({"type": "http.response.body", "body": whole.body, "more_body": False})

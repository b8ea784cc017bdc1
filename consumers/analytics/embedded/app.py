"""ClickHouse's HTTP interface as a Starlette application: `/` runs statements, `/ping` answers."""

from __future__ import annotations

import uuid
import zlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import anyio
import lz4.frame
import orjson
import zstandard
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from consumers.analytics.embedded.engine import VERSION, Engine
from consumers.analytics.embedded.errors import ClickHouseError, from_engine
from consumers.analytics.embedded.execution import Result, Stream, run
from consumers.analytics.embedded.request import Users, parse

BODY_LIMIT = 256 << 20
AT_ONCE = 16
"""Statements that run at the same time; more wait."""


class Compressor(Protocol):
    """Compresses a body piece by piece."""

    def compress(self, data: bytes) -> bytes: ...

    def flush(self) -> bytes: ...


class Lz4Frame:
    """One LZ4 frame, piece by piece."""

    def __init__(self) -> None:
        self._context = lz4.frame.LZ4FrameCompressor()
        self._head: bytes = self._context.begin()

    def compress(self, data: bytes) -> bytes:
        head, self._head = self._head, b""
        return head + bytes(self._context.compress(data))

    def flush(self) -> bytes:
        head, self._head = self._head, b""
        return head + bytes(self._context.flush())


COMPRESSORS: dict[str, Callable[[], Compressor]] = {
    "lz4": Lz4Frame,
    "zstd": lambda: zstandard.ZstdCompressor(level=1).compressobj(),
    "gzip": lambda: zlib.compressobj(1, zlib.DEFLATED, 31),
    "deflate": lambda: zlib.compressobj(1),
}


@dataclass(frozen=True, slots=True)
class Http:
    """The handlers of one engine."""

    engine: Engine
    users: Users
    limiter: anyio.CapacityLimiter = field(default_factory=lambda: anyio.CapacityLimiter(AT_ONCE))

    async def ping(self, _: Request) -> Response:
        return PlainTextResponse("Ok.\n")

    async def root(self, request: Request) -> Response:
        if request.method != "POST" and "query" not in request.query_params:
            return PlainTextResponse("Ok.\n")
        headers = {
            "X-ClickHouse-Query-Id": request.query_params.get("query_id") or str(uuid.uuid4()),
            "X-ClickHouse-Server-Display-Name": "gyre",
            "X-ClickHouse-Timezone": "UTC",
        }
        try:
            settings = self.engine.settings
            query = await parse(request, self.users, settings.reader, settings.database, BODY_LIMIT)
            result = await anyio.to_thread.run_sync(run, self.engine, query, limiter=self.limiter)
        except Exception as error:
            return _failed(error, headers)
        return self._answer(request, result, headers)

    def _answer(self, request: Request, result: Result, headers: dict[str, str]) -> Response:
        headers["X-ClickHouse-Summary"] = orjson.dumps(result.summary).decode()
        if result.format:
            headers["X-ClickHouse-Format"] = result.format
        name = _encoding(request)
        if name:
            headers["Content-Encoding"] = name
        compressor = COMPRESSORS[name]() if name else None
        media = _media_type(result.format)
        if result.pieces is None:
            body = compressor.compress(result.body) + compressor.flush() if compressor else result.body
            return Response(body, headers=headers, media_type=media)
        tag = uuid.uuid4().hex[:16]
        headers["X-ClickHouse-Exception-Tag"] = tag
        return ClosingResponse(result.pieces, compressor, tag, self.limiter, headers=headers, media_type=media)


class ClosingResponse(StreamingResponse):
    """Sends a Stream and closes it on every path, also when the client has gone: never left to the garbage collector."""

    def __init__(
        self, pieces: Stream, compressor: Compressor | None, tag: str, limiter: anyio.CapacityLimiter, **response: Any
    ) -> None:
        self._pieces, self._compressor, self._tag, self._limiter = pieces, compressor, tag, limiter
        super().__init__(self._send_pieces(), **response)

    async def _send_pieces(self) -> AsyncIterator[bytes]:
        shrink = self._compressor.compress if self._compressor else bytes
        try:
            while (piece := await anyio.to_thread.run_sync(next, self._pieces, None, limiter=self._limiter)) is not None:
                yield shrink(piece)
        except ClickHouseError as error:
            yield shrink(_late_error(error, self._tag))
        if self._compressor:
            yield self._compressor.flush()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.to_thread.run_sync(self._pieces.close)


def _late_error(error: ClickHouseError, tag: str) -> bytes:
    """An error after the first bytes were sent, framed as ClickHouse frames it since 25.11."""
    text = f"{_text(error)}\n".encode()
    mark = tag.encode()
    return b"__exception__\r\n%s\r\n%s%d %s\r\n__exception__\r\n" % (mark, text, len(text), mark)


def _text(error: ClickHouseError) -> str:
    return f"{error} (version {VERSION})"


def _failed(error: Exception, headers: dict[str, str]) -> Response:
    known = from_engine(error)
    headers["X-ClickHouse-Exception-Code"] = str(known.code)
    if known.code == 516:
        headers["WWW-Authenticate"] = 'Basic realm="ClickHouse"'
    return PlainTextResponse(_text(known) + "\n", known.status, headers=headers)


def _encoding(request: Request) -> str | None:
    """The compression that the client asks for, which ClickHouse obeys only with `enable_http_compression=1`."""
    if request.query_params.get("enable_http_compression") not in ("1", "true"):
        return None
    accepted = {part.split(";")[0].strip() for part in request.headers.get("accept-encoding", "").split(",")}
    return next((name for name in COMPRESSORS if name in accepted), None)


def _media_type(form: str | None) -> str:
    lower = (form or "").lower()
    if lower.startswith("json"):
        return "application/json" if lower in ("json", "jsoncompact", "jsonstrings") else "application/x-ndjson"
    texts = {"csv": "text/csv; charset=UTF-8; header=absent", "tabseparated": "text/tab-separated-values; charset=UTF-8"}
    return texts.get(lower, "text/plain; charset=UTF-8" if lower in ("", "pretty", "vertical") else "application/octet-stream")


def application(engine: Engine, users: Users) -> Starlette:
    """The application that serves `engine` to `users`."""
    http = Http(engine, users)
    routes = [Route("/ping", http.ping), Route("/", http.root, methods=["GET", "POST", "HEAD"])]
    return Starlette(routes=routes)

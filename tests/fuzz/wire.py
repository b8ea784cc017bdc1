"""HTTP/1.1 as bytes: a client that can say what a library refuses to say, and go at any moment."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass, field

ANSWERS_WITHIN_S = 20.0


@dataclass(frozen=True, slots=True)
class Request:
    """What is sent. head: header lines without those that say how long the body is.

    framing: `length`, `chunked`, or header lines of its own (a length that is not true, none at all)
    cut:     close the sending side after the body, since it is shorter than it says
    drop:    go away after so many bytes of the answer
    """

    method: str
    target: str
    head: tuple[str, ...]
    body: bytes = b""
    framing: str = "length"
    cut: bool = False
    drop: int | None = None

    def written(self) -> bytes:
        """The request as bytes."""
        lines = [f"{self.method} {self.target} HTTP/1.1", "host: p", *self.head]
        if self.framing == "chunked":
            lines.append("transfer-encoding: chunked")
        elif self.framing == "length":
            lines.append(f"content-length: {len(self.body)}")
        elif self.framing:
            lines.append(self.framing)
        body = _chunks(self.body) if self.framing == "chunked" else self.body
        return "\r\n".join([*lines, "", ""]).encode("latin-1", "replace") + body


@dataclass(slots=True)
class Response:
    """What came. status 0: the connection ended before an answer; end: `whole`, `closed`, `dropped` (by us) or `hang`."""

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    end: str = "whole"


class Connection:
    """One connection, kept alive as long as both sides like."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self, request: Request) -> Response:
        """Send it, and take what comes within the limit."""
        reused = self._streams is not None
        found = await self._once(request)
        if reused and found.end == "closed" and not found.status:
            return await self._once(request)  # the server may close an idle connection at any moment
        return found

    async def _once(self, request: Request) -> Response:
        found = Response()
        try:
            async with asyncio.timeout(ANSWERS_WITHIN_S):
                await self._exchange(request, found)
        except TimeoutError:
            found.end = "hang"
        except (OSError, asyncio.IncompleteReadError):
            found.end = "closed"
        if found.end != "whole" or request.cut or found.headers.get("connection") == "close":
            self.close()
        return found

    def close(self) -> None:
        """Go away."""
        if self._streams is not None:
            self._streams[1].transport.abort()
        self._streams = None

    async def _exchange(self, request: Request, found: Response) -> None:
        fresh = request.framing not in ("length", "chunked") or request.cut
        if self._streams is None or fresh:
            self.close()
            self._streams = await asyncio.open_connection("127.0.0.1", self._port, limit=1 << 20)
        reader, writer = self._streams
        writer.write(request.written())
        if request.cut:
            writer.write_eof()
        sending = asyncio.ensure_future(writer.drain())
        try:
            await _read(reader, request, found)
        finally:
            sending.cancel()
            with contextlib.suppress(asyncio.CancelledError, OSError):
                await sending


async def _read(reader: asyncio.StreamReader, request: Request, found: Response) -> None:
    if request.drop == 0:
        found.end = "dropped"
        return
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    found.status = int(head[0].split(" ")[1])
    pairs = [line.partition(":") for line in head[1:] if line]
    found.headers = {name.lower(): value.strip() for name, _, value in pairs}
    if request.method == "HEAD":
        return
    if "content-length" in found.headers:
        found.body = await reader.readexactly(int(found.headers["content-length"]))
        return
    while size := int(await reader.readline(), 16):
        found.body += await reader.readexactly(size)
        await reader.readexactly(2)
        if request.drop is not None and len(found.body) >= request.drop:
            found.end = "dropped"
            return
    await reader.readexactly(2)


def _chunks(body: bytes) -> bytes:
    step = max(1, len(body) // 3)
    pieces = [body[at : at + step] for at in range(0, len(body), step)]
    return b"".join(f"{len(piece):x}\r\n".encode() + piece + b"\r\n" for piece in pieces) + b"0\r\n\r\n"

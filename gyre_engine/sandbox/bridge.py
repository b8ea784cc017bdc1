"""The way out of a sandbox, host side: a unix socket whose connections go on to one TCP address, the model endpoint.

A sandbox has no network but its own loopback. The socket is mounted into it; what connects there (the agent itself, or
`relay`) reaches this address and nothing else. While nobody listens there, because the endpoint is yet to come up or is restarted, a
connection is held and its way tried again within a limit: a client without tries of its own sees one slow answer.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from pathlib import Path

CONNECT_S = 10.0
"""How long one try may take."""
PAUSE_FIRST_S, PAUSE_MOST_S = 0.1, 1.0
"""Between two tries."""

logger = logging.getLogger(__name__)


class _Pipe(asyncio.Protocol):
    """Copies what it receives to its other end; closing one closes both."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self.other: _Pipe | None = None
        self._early: list[bytes] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def join(self, other: _Pipe) -> None:
        self.other = other
        for data in self._early:
            self.data_received(data)
        self._early.clear()

    def data_received(self, data: bytes) -> None:
        if self.other is None or self.other.transport is None:
            self._early.append(data)
        else:
            self.other.transport.write(data)

    def pause_writing(self) -> None:
        if self.other and self.other.transport:
            self.other.transport.pause_reading()

    def resume_writing(self) -> None:
        if self.other and self.other.transport and not self.other.transport.is_closing():
            self.other.transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        if self.other and self.other.transport:
            self.other.transport.close()


class _Way:
    """The endpoint's address. Says once when it is away, and when it is back."""

    def __init__(self, host: str, port: int, patience_s: float) -> None:
        self._host, self._port, self._patience_s = host, port, patience_s
        self._away = False

    async def connect(self) -> _Pipe:
        """Raises OSError where the endpoint has been away for as long as the patience lasts."""
        deadline, pause = time.monotonic() + self._patience_s, PAUSE_FIRST_S
        while True:
            try:
                pipe = await self._once()
            except (OSError, TimeoutError) as error:
                self._tell(away=True)
                if time.monotonic() + pause > deadline:
                    raise ConnectionError(f"nobody listened at {self} for {self._patience_s:g} s ({error})") from error
            else:
                self._tell(away=False)
                return pipe
            await asyncio.sleep(pause)
            pause = min(pause * 2, PAUSE_MOST_S)

    async def _once(self) -> _Pipe:
        made = asyncio.get_running_loop().create_connection(_Pipe, self._host, self._port)
        _, pipe = await asyncio.wait_for(made, CONNECT_S)
        return pipe

    def _tell(self, *, away: bool) -> None:
        if away and not self._away:
            logger.warning("nobody listens at %s: calls of agents wait, each for %g s at most", self, self._patience_s)
        elif self._away and not away:
            logger.info("%s takes calls of agents again", self)
        self._away = away

    def __str__(self) -> str:
        return f"the model endpoint, {self._host}:{self._port}"


class _Accepted(_Pipe):
    """A connection from a sandbox: opens its way to the endpoint."""

    def __init__(self, way: _Way, opening: set[asyncio.Task[None]]) -> None:
        super().__init__()
        self._way, self._others = way, opening
        self._opening: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._opening = asyncio.get_running_loop().create_task(self._open())
        self._others.add(self._opening)
        self._opening.add_done_callback(self._others.discard)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._opening is not None and self.other is None:
            self._opening.cancel()  # the client waits no longer
        super().connection_lost(exc)

    async def _open(self) -> None:
        assert self.transport is not None
        try:
            out = await self._way.connect()
        except OSError as error:
            logger.warning("a call of an agent is cut off: %s", error)
            self.transport.close()  # what its client makes of it is the client's
            return
        out.join(self)
        self.join(out)
        if self.transport.is_closing() and out.transport:
            out.transport.close()


class Bridge:
    """An open bridge."""

    def __init__(self, path: Path, server: asyncio.AbstractServer, opening: set[asyncio.Task[None]]) -> None:
        self.path, self._server, self._opening = path, server, opening

    async def close(self) -> None:
        """Accept nothing more and remove the socket."""
        self._server.close()
        for task in self._opening:
            task.cancel()
        self.path.unlink(missing_ok=True)


async def open_bridge(path: Path, host: str, port: int, patience_s: float) -> Bridge:
    """Listen on the unix socket `path` (at most 107 bytes) and forward to host:port, which may be away for `patience_s`."""
    opening: set[asyncio.Task[None]] = set()
    path.unlink(missing_ok=True)
    way = _Way(host, port, patience_s)
    server = await asyncio.get_running_loop().create_unix_server(lambda: _Accepted(way, opening), str(path))
    os.chmod(path, 0o666)  # noqa: S103 - the folder around it is ours alone; sandboxes have other uids
    return Bridge(path, server, opening)

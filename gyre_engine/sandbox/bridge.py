"""The way out of a sandbox, host side: a unix socket whose connections go on to one TCP address, the model endpoint.

A sandbox has no network but its own loopback. The socket is mounted into it; what connects there (the agent itself, or
`relay`) reaches this address and nothing else.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path


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


class _Accepted(_Pipe):
    """A connection from a sandbox: opens its way to the endpoint."""

    def __init__(self, host: str, port: int, opening: set[asyncio.Task[None]]) -> None:
        super().__init__()
        self._host, self._port, self._opening = host, port, opening

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        task = asyncio.get_running_loop().create_task(self._open())
        self._opening.add(task)
        task.add_done_callback(self._opening.discard)

    async def _open(self) -> None:
        loop = asyncio.get_running_loop()
        assert self.transport is not None
        try:
            _, out = await asyncio.wait_for(loop.create_connection(_Pipe, self._host, self._port), 10.0)
        except (OSError, TimeoutError):
            self.transport.close()  # the endpoint is away: the client sees a dropped connection and tries again
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


async def open_bridge(path: Path, host: str, port: int) -> Bridge:
    """Listen on the unix socket `path` (at most 107 bytes) and forward to host:port."""
    opening: set[asyncio.Task[None]] = set()
    path.unlink(missing_ok=True)
    server = await asyncio.get_running_loop().create_unix_server(lambda: _Accepted(host, port, opening), str(path))
    os.chmod(path, 0o666)  # noqa: S103 - the folder around it is ours alone; sandboxes have other uids
    return Bridge(path, server, opening)

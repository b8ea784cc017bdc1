"""Transfer over TCP: threads that serve registered memory, and reads over several connections that verify what arrives.

Neither end copies a byte in this program: the owner's kernel reads registered memory, the reader's writes into the target. Chunks are
hashed in the thread of their connection.

promises  a reader with the wrong key gets no byte; a lost owner raises within the timeout; a chunk that is not what was
          registered raises, one that was verified is not read again; after `unregister` returned, the memory is not touched again
"""

from __future__ import annotations

import os
import socket
import threading
from collections import deque
from collections.abc import Callable, Iterable

from gyre_engine.transfer.digests import checked_digests, digest_of, verify
from gyre_engine.transfer.port import DIGEST_BYTES, Descriptor, Progress, Region
from gyre_engine.transfer.registry import STALLED_READER_SECONDS, Keys, Registration, Registry, hang_up
from gyre_engine.transfer.wire import (
    ASK,
    CHUNKS,
    DIGESTS,
    OK,
    REFUSED,
    TCP,
    Deadline,
    expect,
    knock,
    receive,
    receive_into,
    send,
)

CHUNK_BYTES = 1 << 20
RUN_BYTES = 8 << 20
"""Chunks asked for at once: few enough that connections finish together, enough to hide a round trip."""
ASKED_AHEAD = 2
STREAMS = max(1, min(4, (os.cpu_count() or 1) // 2))
"""Each may keep a processor busy at either end: more of them than processors slow each other down."""

Run = tuple[int, int]
"""(first chunk, how many)"""


class TcpTransfer:
    """A Transfer (see the port) that listens on `host`; port 0 takes a free one.

    advertise:  the host that peers reach it by, where it differs
    secret:     shared by owners and readers of a run: descriptors then carry no capability. None: each carries its own.
    streams:    connections of one large read
    """

    def __init__(
        self,
        host: str = "127.0.0.1",
        port: int = 0,
        *,
        advertise: str | None = None,
        secret: bytes | None = None,
        chunk: int = CHUNK_BYTES,
        streams: int = STREAMS,
    ) -> None:
        self._keys, self._streams = Keys(secret), streams
        self._registry = Registry(TCP, self._keys, chunk, (host, port), _serve)
        self.host, self.port = advertise or host, self._registry.port

    def register(self, region: Region, *, changes: bool = False, lease: float | None = None) -> Descriptor:
        """See the port. Reads every byte once for its hash, unless it changes."""
        return self._registry.add(region, self.host, changes=changes, lease=lease)

    def unregister(self, descriptor: Descriptor, *, timeout: float) -> None:
        """See the port. An unknown registration has ended already."""
        self._registry.remove(descriptor, timeout)

    def read(self, source: Descriptor, into: Region, *, timeout: float, progress: Progress | None = None) -> None:
        """See the port."""
        if into.nbytes != source.nbytes:
            raise ValueError(f"the source has {source.nbytes} bytes, the target {into.nbytes}; they must be equal")
        deadline = Deadline.after(timeout, f"peer {source.host}:{source.port}")
        progress = progress or Progress()
        runs = list(runs_of(progress.begin(source), max(1, RUN_BYTES // source.chunk)))

        def connect() -> socket.socket:
            return knock(source, TCP, self._keys.opens(source), deadline)

        with connect() as first:
            digests = _digests(first, source, deadline) if source.digest else None
            _Reading(source, into.view(), digests, progress, runs, deadline).over(first, connect, self._streams)

    def close(self) -> None:
        """See the port."""
        self._registry.close()


class _Reading:
    """One read: runs that are left, and the connections that take them."""

    def __init__(
        self, source: Descriptor, into: memoryview, digests: list[bytes] | None, progress: Progress, runs: list[Run],
        deadline: Deadline,
    ) -> None:  # fmt: skip
        self._source, self._into, self._digests, self._progress = source, into, digests, progress
        self._left, self._deadline = deque(runs), deadline
        self._lock = threading.Lock()
        self._open: list[socket.socket] = []
        self._failed: BaseException | None = None

    def over(self, first: socket.socket, connect: Callable[[], socket.socket], streams: int) -> None:
        """Read over `first` here and over others in threads of their own; all have ended on return. Raises the first failure."""

        def connected() -> None:
            with connect() as connection:
                self._stream(connection)

        others = range(1, min(streams, len(self._left)))
        threads = [threading.Thread(target=self._guarded, args=(connected,), daemon=True) for _ in others]
        for thread in threads:
            thread.start()
        self._guarded(lambda: self._stream(first))
        for thread in threads:
            thread.join()
        if self._failed is not None:
            raise self._failed

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:
            with self._lock:
                self._failed = self._failed or error
                self._left.clear()
                for connection in self._open:
                    hang_up(connection)

    def _stream(self, connection: socket.socket) -> None:
        with self._lock:
            if self._failed is not None:
                return
            self._open.append(connection)
        asked: deque[Run] = deque()
        try:
            while True:
                while len(asked) < ASKED_AHEAD and (run := self._next()):
                    send(connection, ASK.pack(CHUNKS, *run), self._deadline)
                    asked.append(run)
                if not asked:
                    return
                self._receive(connection, asked.popleft())
        finally:
            with self._lock:
                self._open.remove(connection)

    def _next(self) -> Run | None:
        with self._lock:
            return self._left.popleft() if self._left else None

    def _receive(self, connection: socket.socket, run: Run) -> None:
        expect(connection, self._source, self._deadline)
        for index in range(run[0], run[0] + run[1]):
            start = index * self._source.chunk
            part = self._into[start : start + self._source.chunk]
            digest = self._digests[index] if self._digests else receive(connection, DIGEST_BYTES, self._deadline)
            receive_into(connection, part, self._deadline)
            verify(part, digest, start, self._deadline.peer)
            self._progress.verified(index, len(part))


def runs_of(chunks: Iterable[int], longest: int) -> Iterable[Run]:
    """Ascending chunk numbers as runs of neighbours."""
    first = count = 0
    for chunk in chunks:
        if count and (chunk != first + count or count == longest):
            yield first, count
            count = 0
        first, count = (chunk, 1) if not count else (first, count + 1)
    if count:
        yield first, count


def _digests(connection: socket.socket, source: Descriptor, deadline: Deadline) -> list[bytes]:
    """The digests of all chunks; together they are what the descriptor says. Raises IntegrityError."""
    send(connection, ASK.pack(DIGESTS, 0, source.chunks), deadline)
    expect(connection, source, deadline)
    return checked_digests(receive(connection, source.chunks * DIGEST_BYTES, deadline), source, deadline.peer)


def _serve(connection: socket.socket, registration: Registration) -> None:
    """Answer a reader's asks until it hangs up."""
    while True:
        ask = receive(connection, ASK.size, Deadline.after(STALLED_READER_SECONDS, "the reader"))
        what, first, count = ASK.unpack(ask)
        connection.settimeout(STALLED_READER_SECONDS)
        with registration.inside() as alive:
            chunks = -(-registration.region.nbytes // registration.chunk)
            if not alive or first + count > chunks or (what == DIGESTS and registration.changes):
                connection.sendall(REFUSED)
            elif what == DIGESTS:
                connection.sendall(OK + b"".join(registration.digests[first : first + count]))
            else:
                _send(connection, registration, first, count)


def _send(connection: socket.socket, registration: Registration, first: int, count: int) -> None:
    chunk = registration.chunk
    view = registration.region.view()[first * chunk : (first + count) * chunk]
    connection.sendall(OK)
    if not registration.changes:
        connection.sendall(view)
        return
    for start in range(0, len(view), chunk):
        part = view[start : start + chunk]
        connection.sendall(digest_of(part))
        connection.sendall(part)

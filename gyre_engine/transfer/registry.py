"""What a process has registered, who may read it, and the socket at which readers knock. Both kinds of transfer serve from here.

promises  no answer but `refused` before the capability was checked; `end` returns when no reader is inside any more
"""

from __future__ import annotations

import hmac
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from gyre_engine.transfer.digests import chunk_digests, root_digest
from gyre_engine.transfer.port import Descriptor, Region, TransferError
from gyre_engine.transfer.wire import HEADER, OK, REFUSED, REQUEST, Deadline, receive

STALLED_READER_SECONDS = 30.0


@dataclass(slots=True, eq=False)
class Registration:
    """A region that is open for reading, and how many readers are inside. `digests`: none where its memory changes."""

    region: Region
    capability: bytes
    chunk: int
    changes: bool
    digests: tuple[bytes, ...]
    expires: float | None
    memory: Any = None
    """What a card calls it."""
    readers: int = 0
    open: bool = True
    idle: threading.Condition = field(default_factory=threading.Condition)

    def left(self) -> float | None:
        """Seconds of its lease; None without one."""
        return None if self.expires is None else max(0.0, self.expires - time.monotonic())

    @contextmanager
    def inside(self) -> Iterator[bool]:
        """Be a reader for a while; False where it is closed or its lease is over."""
        with self.idle:
            alive = self.open and self.left() != 0.0
            self.readers += alive
        try:
            yield alive
        finally:
            with self.idle:
                self.readers -= alive
                self.idle.notify_all()

    def end(self, timeout: float) -> int:
        """Close; wait for readers inside. How many are left after `timeout` seconds."""
        with self.idle:
            self.open = False
            self.idle.wait_for(lambda: self.readers == 0, timeout)
            return self.readers


class Keys:
    """Capabilities: drawn from a secret that the processes of a run share, or from one of this process's own."""

    def __init__(self, secret: bytes | None) -> None:
        self.shared = secret is not None
        self._secret = secret or secrets.token_bytes(32)

    def of(self, key_id: bytes) -> bytes:
        return hmac.digest(self._secret, key_id, "sha256")

    def opens(self, source: Descriptor) -> bytes:
        """What a reader of `source` shows."""
        return source.capability or self.of(source.key_id)


class Registry:
    """Registrations by key, and the door to them. `serve` is called in a thread for each reader whose key was right."""

    def __init__(
        self, magic: bytes, keys: Keys, chunk: int, address: tuple[str, int], serve: Callable[[socket.socket, Registration], None]
    ) -> None:
        self._magic, self._keys, self._chunk, self._serve = magic, keys, chunk, serve
        self._registrations: dict[bytes, Registration] = {}
        self._inside: set[socket.socket] = set()
        self._listener = socket.create_server(address)
        self.port = int(self._listener.getsockname()[1])
        self._acceptor = threading.Thread(target=self._accept, name=f"transfer-{self.port}", daemon=True)
        self._acceptor.start()

    def add(self, region: Region, host: str, *, changes: bool, lease: float | None, memory: Any = None) -> Descriptor:
        """Open a region; hashes it, unless it changes."""
        key_id = secrets.token_bytes(16)
        capability = self._keys.of(key_id)
        digests = () if changes else tuple(chunk_digests(region.view(), self._chunk))
        expires = None if lease is None else time.monotonic() + lease
        self._registrations[key_id] = Registration(region, capability, self._chunk, changes, digests, expires, memory)
        return Descriptor(
            host=host, port=self.port, key_id=key_id, capability=b"" if self._keys.shared else capability,
            nbytes=region.nbytes, chunk=self._chunk, digest=b"" if changes else root_digest(digests),
        )  # fmt: skip

    def remove(self, descriptor: Descriptor, timeout: float) -> Registration | None:
        """Close a registration; None for one that has ended already. Raises TimeoutError where readers stay: ask again then."""
        registration = self._registrations.get(descriptor.key_id)
        left = registration.end(timeout) if registration else 0
        if left:
            raise TimeoutError(f"{left} readers still hold registration {descriptor.key_id.hex()} after {timeout} s")
        return self._registrations.pop(descriptor.key_id, None)

    def close(self) -> list[Registration]:
        """Take no more readers, send away those inside; what was registered."""
        hang_up(self._listener)  # wakes the thread in accept, which close does not
        self._listener.close()
        self._acceptor.join(timeout=5)
        ended = [self._registrations.pop(key_id) for key_id in list(self._registrations)]
        for registration in ended:
            registration.open = False
        for connection in list(self._inside):
            hang_up(connection)
        for registration in ended:
            registration.end(timeout=5)
        return ended

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:  # closed
                return
            threading.Thread(target=self._receive, args=(connection,), daemon=True).start()

    def _receive(self, connection: socket.socket) -> None:
        """One reader. A reader that breaks off or stalls is its own problem: it gets PeerLost and asks again."""
        with connection:
            self._inside.add(connection)
            try:
                registration = self._admitted(connection)
                if registration is None:
                    connection.sendall(REFUSED)
                    return
                _watch(connection)
                connection.sendall(OK + HEADER.pack(registration.region.nbytes, registration.chunk, registration.changes))
                self._serve(connection, registration)
            except (OSError, TransferError):
                return
            finally:
                self._inside.discard(connection)

    def _admitted(self, connection: socket.socket) -> Registration | None:
        request = receive(connection, REQUEST.size, Deadline.after(STALLED_READER_SECONDS, "the reader"))
        magic, key_id, capability = REQUEST.unpack(request)
        registration = self._registrations.get(key_id)
        wanted = registration.capability if registration else self._keys.of(key_id)
        allowed = hmac.compare_digest(wanted, capability) and magic == self._magic
        return registration if registration and allowed and registration.open and registration.left() != 0.0 else None


def _watch(connection: socket.socket) -> None:
    """Send at once, and notice within half a minute that a peer's machine has gone without a word."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in ((socket.TCP_KEEPIDLE, 10), (socket.TCP_KEEPINTVL, 5), (socket.TCP_KEEPCNT, 4)):
        connection.setsockopt(socket.IPPROTO_TCP, option, value)


def hang_up(connection: socket.socket) -> None:
    """Wake whoever waits on `connection`."""
    try:
        connection.shutdown(socket.SHUT_RDWR)
    except OSError:  # gone already
        return

"""Transfer over TCP: a thread that serves registered memory, and reads that verify what arrives.

promises  a reader with the wrong key gets no byte; a lost owner raises within the timeout; a chunk that is not what was
          registered raises; after `unregister` returned, the memory is not touched again
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import socket
import threading
import time
from dataclasses import dataclass, field

from gyre_engine.transfer.port import (
    DIGEST_BYTES,
    Descriptor,
    IntegrityError,
    PeerLost,
    Region,
    WrongKey,
    chunk_digests,
)
from gyre_engine.transfer.wire import CHUNK_BYTES, HEADER, MAGIC, OK, REFUSED, REQUEST, Deadline, receive_into

_STALLED_READER_SECONDS = 30.0


@dataclass(slots=True, eq=False)
class _Registration:
    """A region that is open for reading, and how many readers are inside."""

    region: Region
    capability: bytes
    digests: tuple[bytes, ...]
    expires: float | None
    readers: int = 0
    open: bool = True
    idle: threading.Condition = field(default_factory=threading.Condition)

    def enter(self) -> bool:
        """Let a reader in, unless it is closed or its lease is over."""
        with self.idle:
            alive = self.open and (self.expires is None or time.monotonic() < self.expires)
            self.readers += alive
            return alive

    def leave(self) -> None:
        with self.idle:
            self.readers -= 1
            self.idle.notify_all()

    def end(self, timeout: float) -> int:
        """Close; wait for readers inside. How many are left after `timeout` seconds."""
        with self.idle:
            self.open = False
            self.idle.wait_for(lambda: self.readers == 0, timeout)
            return self.readers


class TcpTransfer:
    """A Transfer (see the port) that listens on `host`; port 0 takes a free one.

    advertise:  the host that peers reach it by, where it differs
    secret:     shared by owners and readers of a run: descriptors then carry no capability. None: each carries its own.
    """

    def __init__(
        self,
        host: str = "127.0.0.1",
        port: int = 0,
        *,
        advertise: str | None = None,
        secret: bytes | None = None,
        chunk: int = CHUNK_BYTES,
    ) -> None:
        self._shared = secret is not None
        self._secret = secret or secrets.token_bytes(32)
        self._chunk = chunk
        self._registrations: dict[bytes, _Registration] = {}
        self._listener = socket.create_server((host, port))
        self.host, self.port = advertise or host, int(self._listener.getsockname()[1])
        self._acceptor = threading.Thread(target=self._accept, name=f"transfer-{self.port}", daemon=True)
        self._acceptor.start()

    def register(self, region: Region, *, changes: bool = False, lease: float | None = None) -> Descriptor:
        """See the port. Reads every byte once for its hash, unless it changes."""
        key_id = secrets.token_bytes(16)
        capability = _capability(self._secret, key_id)
        digests = () if changes else tuple(chunk_digests(region.view(), self._chunk))
        expires = None if lease is None else time.monotonic() + lease
        self._registrations[key_id] = _Registration(region, capability, digests, expires)
        return Descriptor(
            host=self.host,
            port=self.port,
            key_id=key_id,
            capability=b"" if self._shared else capability,
            nbytes=region.nbytes,
            chunk=self._chunk,
            digest=b"" if changes else _root(digests),
        )

    def unregister(self, descriptor: Descriptor, *, timeout: float) -> None:
        """See the port. An unknown registration has ended already."""
        registration = self._registrations.pop(descriptor.key_id, None)
        left = registration.end(timeout) if registration else 0
        if left:
            raise TimeoutError(f"{left} readers still hold registration {descriptor.key_id.hex()} after {timeout} s")

    def read(self, source: Descriptor, into: Region, *, timeout: float) -> None:
        """See the port."""
        if into.nbytes != source.nbytes:
            raise ValueError(f"the source has {source.nbytes} bytes, the target {into.nbytes}; they must be equal")
        deadline = Deadline.after(timeout, f"peer {source.host}:{source.port}")
        with _connect(source, deadline) as connection:
            capability = source.capability or _capability(self._secret, source.key_id)
            _ask(connection, source, capability, deadline)
            _receive(connection, source, into.view(), deadline)

    def close(self) -> None:
        """See the port."""
        self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread in accept, which close does not
        self._listener.close()
        self._acceptor.join(timeout=5)
        for key_id in list(self._registrations):
            self._registrations.pop(key_id).end(timeout=5)

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:  # closed
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        """One reader. A reader that breaks off or stalls is its own problem: it gets PeerLost and asks again."""
        with connection:
            connection.settimeout(_STALLED_READER_SECONDS)
            try:
                registration = self._admitted(connection)
                if registration is None:
                    connection.sendall(REFUSED)
                    return
                try:
                    _send(connection, registration, self._chunk)
                finally:
                    registration.leave()
            except (OSError, PeerLost):
                return

    def _admitted(self, connection: socket.socket) -> _Registration | None:
        request = bytearray(REQUEST.size)
        receive_into(connection, memoryview(request), Deadline.after(_STALLED_READER_SECONDS, "the reader"))
        magic, key_id, capability = REQUEST.unpack(request)
        registration = self._registrations.get(key_id)
        wanted = registration.capability if registration else _capability(self._secret, key_id)
        allowed = hmac.compare_digest(wanted, capability) and magic == MAGIC
        return registration if registration and allowed and registration.enter() else None


def _capability(secret: bytes, key_id: bytes) -> bytes:
    return hmac.digest(secret, key_id, "sha256")


def _root(digests: tuple[bytes, ...] | list[bytes]) -> bytes:
    return hashlib.sha256(b"".join(digests)).digest()


def _send(connection: socket.socket, registration: _Registration, chunk: int) -> None:
    view = registration.region.view()
    connection.sendall(OK + HEADER.pack(len(view), chunk))
    for index, start in enumerate(range(0, len(view), chunk)):
        if not registration.open:
            return
        part = view[start : start + chunk]
        digest = registration.digests[index] if registration.digests else hashlib.sha256(part).digest()
        connection.sendall(digest)
        connection.sendall(part)


def _connect(source: Descriptor, deadline: Deadline) -> socket.socket:
    try:
        return socket.create_connection((source.host, source.port), timeout=deadline.left())
    except OSError as error:
        raise PeerLost(f"{deadline.peer} cannot be reached: {error}") from error


def _ask(connection: socket.socket, source: Descriptor, capability: bytes, deadline: Deadline) -> None:
    try:
        connection.settimeout(deadline.left())
        connection.sendall(REQUEST.pack(MAGIC, source.key_id, capability))
    except OSError as error:
        raise PeerLost(f"{deadline.peer} was lost while asked: {error}") from error
    status = bytearray(1)
    receive_into(connection, memoryview(status), deadline)
    if status != OK:
        raise WrongKey(f"{deadline.peer} has no registration {source.key_id.hex()} for this key, or its lease is over")


def _receive(connection: socket.socket, source: Descriptor, into: memoryview, deadline: Deadline) -> None:
    header = bytearray(HEADER.size)
    receive_into(connection, memoryview(header), deadline)
    if HEADER.unpack(header) != (source.nbytes, source.chunk):
        raise IntegrityError(f"{deadline.peer} serves a region of another size than its descriptor says")
    digests: list[bytes] = []
    for start in range(0, source.nbytes, source.chunk):
        digest = bytearray(DIGEST_BYTES)
        receive_into(connection, memoryview(digest), deadline)
        part = into[start : start + source.chunk]
        receive_into(connection, part, deadline)
        if not hmac.compare_digest(hashlib.sha256(part).digest(), digest):
            raise IntegrityError(f"{deadline.peer}: bytes from {start} on are not what was registered")
        digests.append(bytes(digest))
    if source.digest and not hmac.compare_digest(_root(digests), source.digest):
        raise IntegrityError(f"{deadline.peer} serves other bytes than its descriptor was made for")

"""What readers and owners say to each other over a socket, and sockets with a deadline.

Both kinds of transfer begin alike, so that no byte and no key of memory leaves before the capability was checked:
request   magic(4) key_id(16) capability(32)
answer    status(1); where it is not OK, that is all; else nbytes(8) chunk(8) changes(1)

Then over TCP any number of
ask       what(1) first(8) count(8): digests or chunks from number `first` on
answer    status(1), then the digests(8 each), or the chunks' bytes, each after its digest where memory changes
and over verbs the exchange of cards (`verbs`).
Integers are unsigned, big-endian.
"""

from __future__ import annotations

import socket
import struct
import time
from dataclasses import dataclass

from gyre_engine.transfer.port import Descriptor, IntegrityError, PeerLost, WrongKey

REQUEST = struct.Struct(">4s16s32s")
HEADER = struct.Struct(">QQ?")
ASK = struct.Struct(">cQQ")
TCP, VERBS = b"gyT3", b"gyV2"
DIGESTS, CHUNKS = b"d", b"c"
OK, REFUSED = b"\x00", b"\x01"


@dataclass(frozen=True, slots=True)
class Deadline:
    """A moment on the monotonic clock, and whom it is waited for."""

    at: float
    peer: str

    @classmethod
    def after(cls, seconds: float, peer: str) -> Deadline:
        return cls(time.monotonic() + seconds, peer)

    def left(self) -> float:
        """Seconds left, above 0. Raises PeerLost when none are."""
        left = self.at - time.monotonic()
        if left <= 0:
            raise PeerLost(f"{self.peer} did not deliver in time")
        return left


def receive_into(connection: socket.socket, view: memoryview, deadline: Deadline) -> None:
    """Fill `view`. Raises PeerLost when the peer closes, breaks or is late."""
    filled = 0
    while filled < len(view):
        connection.settimeout(deadline.left())
        try:
            count = connection.recv_into(view[filled:])
        except OSError as error:
            raise PeerLost(f"{deadline.peer} was lost after {filled} of {len(view)} bytes: {error}") from error
        if count == 0:
            raise PeerLost(f"{deadline.peer} closed after {filled} of {len(view)} bytes")
        filled += count


def receive(connection: socket.socket, nbytes: int, deadline: Deadline) -> bytes:
    """The next `nbytes` bytes. Raises PeerLost."""
    data = bytearray(nbytes)
    receive_into(connection, memoryview(data), deadline)
    return bytes(data)


def send(connection: socket.socket, data: bytes, deadline: Deadline) -> None:
    """All of `data`. Raises PeerLost."""
    try:
        connection.settimeout(deadline.left())
        connection.sendall(data)
    except OSError as error:
        raise PeerLost(f"{deadline.peer} was lost while asked: {error}") from error


def knock(source: Descriptor, magic: bytes, capability: bytes, deadline: Deadline) -> socket.socket:
    """A connection to the owner of `source`, who has checked the key and serves what the descriptor says.

    Raises PeerLost, WrongKey or IntegrityError.
    """
    try:
        connection = socket.create_connection((source.host, source.port), timeout=deadline.left())
    except (OSError, UnicodeError) as error:
        raise PeerLost(f"{deadline.peer} cannot be reached: {error}") from error
    try:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        send(connection, REQUEST.pack(magic, source.key_id, capability), deadline)
        expect(connection, source, deadline)
        serves = HEADER.unpack(receive(connection, HEADER.size, deadline))
        if serves != (source.nbytes, source.chunk, not source.digest):
            raise IntegrityError(f"{deadline.peer} serves a region of another size than its descriptor says")
    except BaseException:
        connection.close()
        raise
    return connection


def expect(connection: socket.socket, source: Descriptor, deadline: Deadline) -> None:
    """Read a status. Raises WrongKey where it is not OK."""
    if receive(connection, 1, deadline) != OK:
        raise WrongKey(f"{deadline.peer} has no registration {source.key_id.hex()} for this key, or its lease is over")

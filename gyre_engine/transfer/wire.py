"""The bytes between a reader and an owner over TCP, and sockets with a deadline.

request   magic(4) key_id(16) capability(32)
answer    status(1); if OK: nbytes(8) chunk(8), then for each chunk its SHA-256(32) and its bytes
          SHA-256 is the one of registration, or of the moment for memory that changes
Integers are unsigned, big-endian.
"""

from __future__ import annotations

import socket
import struct
import time
from dataclasses import dataclass

from gyre_engine.transfer.port import DIGEST_BYTES, PeerLost

REQUEST = struct.Struct(">4s16s32s")
HEADER = struct.Struct(">QQ")
MAGIC = b"gyT1"
OK, REFUSED = b"\x00", b"\x01"
CHUNK_BYTES = 1 << 20

__all__ = ["CHUNK_BYTES", "DIGEST_BYTES", "HEADER", "MAGIC", "OK", "REFUSED", "REQUEST", "Deadline", "receive_into"]


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

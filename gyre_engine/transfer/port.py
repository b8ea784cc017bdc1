"""The Transfer port: register memory, read what a peer registered, verified chunk by chunk."""

from __future__ import annotations

import ctypes
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from numpy.typing import NDArray

from gyre_engine.events.codec import pack, unpack

DIGEST_BYTES = 32


class TransferError(RuntimeError):
    """A read failed; the target region is undefined."""


class PeerLost(TransferError):
    """The peer is gone, or did not deliver within the timeout."""


class WrongKey(TransferError):
    """The peer has no such registration, or the capability does not open it; nothing was read."""


class IntegrityError(TransferError):
    """What arrived is not what was registered: the region changed afterwards, or the way damaged it."""


@dataclass(frozen=True, slots=True, eq=False)
class Region:
    """Memory of this process. `owner` keeps it alive; address and nbytes in bytes."""

    address: int
    nbytes: int
    owner: object

    @classmethod
    def of_array(cls, array: NDArray[Any]) -> Region:
        """The memory of a contiguous array. Raises ValueError for any other."""
        if not array.flags.c_contiguous:
            raise ValueError("only a contiguous array can be registered; pass np.ascontiguousarray(array)")
        return cls(array.ctypes.data, array.nbytes, array)

    def view(self) -> memoryview:
        """The live memory as writable bytes."""
        return memoryview((ctypes.c_char * self.nbytes).from_address(self.address)).cast("B")


@dataclass(frozen=True, slots=True)
class Descriptor:
    """What a peer needs to read a region; travels in events.

    host, port:    where its owner serves
    key_id:        bytes[16], names the registration
    capability:    bytes[32] that opens it; empty where owner and readers share a secret, from which it follows
    nbytes, chunk: size of the region and of the parts it is verified in
    digest:        SHA-256 over the chunks' SHA-256, of the bytes at registration; empty for memory that still changes
    """

    host: str
    port: int
    key_id: bytes
    capability: bytes
    nbytes: int
    chunk: int
    digest: bytes

    def to_fields(self) -> dict[str, Any]:
        """Plain fields for msgpack."""
        return {name: getattr(self, name) for name in _FIELDS}

    @classmethod
    def from_fields(cls, fields: Mapping[str, Any]) -> Descriptor:
        """The inverse; unknown fields are ignored. Raises KeyError where one is missing."""
        return cls(**{name: fields[name] for name in _FIELDS})

    def to_bytes(self) -> bytes:
        """As an event carries it: msgpack."""
        return pack(self.to_fields())

    @classmethod
    def from_bytes(cls, data: bytes) -> Descriptor:
        """The inverse of to_bytes. Raises CodecError or KeyError."""
        return cls.from_fields(unpack(data))


_FIELDS = ("host", "port", "key_id", "capability", "nbytes", "chunk", "digest")


class Transfer(Protocol):
    """Reads memory that another process has registered, without its help."""

    def register(self, region: Region, *, changes: bool = False, lease: float | None = None) -> Descriptor:
        """Open `region` for reading until `unregister`, or for `lease` seconds.

        changes: False promises that the bytes stay as they are now, and lets readers prove it.
        """

    def unregister(self, descriptor: Descriptor, *, timeout: float) -> None:
        """Close a registration; on return nobody reads it any more. Raises TimeoutError naming how many still do."""

    def read(self, source: Descriptor, into: Region, *, timeout: float) -> None:
        """Fill `into` (same nbytes). Raises PeerLost, WrongKey or IntegrityError; `into` is undefined then."""

    def close(self) -> None:
        """Stop serving; every registration ends."""


def chunk_digests(view: memoryview, chunk: int) -> list[bytes]:
    """SHA-256 of each chunk, in order."""
    return [hashlib.sha256(view[start : start + chunk]).digest() for start in range(0, len(view), chunk)]

"""The Transfer port: register memory, read what a peer registered, verified chunk by chunk."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from numpy.typing import NDArray

from gyre_engine.events.codec import CodecError, pack, unpack

ALGORITHM, DIGEST_BYTES = "xxh64", 8
"""What chunks are hashed with (`digests`)."""
LARGEST_CHUNK = 1 << 30


class TransferError(RuntimeError):
    """A read failed; the target region is undefined, but for the chunks that a Progress holds."""


class PeerLost(TransferError):
    """The peer is gone, or did not deliver within the timeout."""


class WrongKey(TransferError):
    """The peer has no such registration, or the capability does not open it; nothing was read."""


class BadDescriptor(WrongKey, ValueError):
    """What should be a descriptor is not one: cut off, mangled, or of another program."""


class IntegrityError(TransferError):
    """What arrived is not what was registered: the region changed afterwards, or the way damaged it."""


class NotPossible(TransferError):
    """This kind of transfer cannot work on this machine; the text says what is missing."""


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
        if not self.nbytes:
            return memoryview(bytearray())
        return memoryview((ctypes.c_char * self.nbytes).from_address(self.address)).cast("B")


@dataclass(frozen=True, slots=True)
class Descriptor:
    """What a peer needs to read a region; travels in events. Raises BadDescriptor where a field cannot be one.

    host, port:    where its owner serves
    key_id:        bytes[16], names the registration
    capability:    bytes[32] that opens it; empty where owner and readers share a secret, from which it follows
    nbytes, chunk: size of the region and of the parts it is verified in
    digest:        hash over the chunks' hashes, of the bytes at registration; empty for memory that still changes
    algorithm:     of these hashes
    """

    host: str
    port: int
    key_id: bytes
    capability: bytes
    nbytes: int
    chunk: int
    digest: bytes
    algorithm: str = ALGORITHM

    def __post_init__(self) -> None:
        for name, fits in _FIELDS.items():
            if not fits(getattr(self, name)):
                raise BadDescriptor(
                    f"a transfer descriptor cannot have {name} {getattr(self, name)!r:.80}{_REMEDIES.get(name, '')}"
                )

    @property
    def chunks(self) -> int:
        """How many chunks there are."""
        return -(-self.nbytes // self.chunk)

    def to_fields(self) -> dict[str, Any]:
        """Plain fields for msgpack."""
        return {name: getattr(self, name) for name in _FIELDS}

    @classmethod
    def from_fields(cls, fields: Mapping[str, Any]) -> Descriptor:
        """The inverse; unknown fields are ignored. Raises BadDescriptor."""
        missing = [name for name in _FIELDS if name not in fields]
        if missing:
            raise BadDescriptor(f"a transfer descriptor lacks {', '.join(missing)}")
        return cls(**{name: fields[name] for name in _FIELDS})

    def to_bytes(self) -> bytes:
        """As an event carries it: msgpack."""
        return pack(self.to_fields())

    @classmethod
    def from_bytes(cls, data: bytes) -> Descriptor:
        """The inverse of to_bytes. Raises BadDescriptor."""
        try:
            fields = unpack(data)
        except CodecError as error:
            raise BadDescriptor(f"{len(data)} bytes are no transfer descriptor: {error}") from error
        return cls.from_fields(fields)


def _whole(least: int, most: int) -> Any:
    return lambda value: type(value) is int and least <= value <= most


def _bytes(*lengths: int) -> Any:
    return lambda value: type(value) is bytes and len(value) in lengths


_FIELDS: dict[str, Any] = {
    "algorithm": lambda value: value == ALGORITHM,  # first: what follows depends on it
    "host": lambda value: type(value) is str and 0 < len(value) < 256,
    "port": _whole(1, 65535),
    "key_id": _bytes(16),
    "capability": _bytes(0, 32),
    "nbytes": _whole(0, 1 << 62),
    "chunk": _whole(1, LARGEST_CHUNK),
    "digest": _bytes(0, DIGEST_BYTES),
}
_REMEDIES = {"algorithm": f": this Gyre verifies with {ALGORITHM} alone; run the same version at both ends"}


@dataclass(slots=True, eq=False)
class Progress:
    """What of a target region has been read and verified. Given to a later read of the same bytes, from whichever owner, it goes on
    there; for other bytes it starts anew.

    received: bytes that came over the wire, all reads together
    """

    digest: bytes = b""
    chunk: int = 0
    done: set[int] = field(default_factory=set)
    received: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def verified(self, chunk: int, nbytes: int) -> None:
        """A chunk has arrived and is what it should be."""
        with self._lock:
            self.received += nbytes
            self.done.add(chunk)

    def begin(self, source: Descriptor) -> list[int]:
        """The chunks of `source` that are still to be read. Memory that changes is read whole each time."""
        if not source.digest or (self.digest, self.chunk) != (source.digest, source.chunk):
            self.digest, self.chunk, self.done = source.digest, source.chunk, set()
        return [index for index in range(source.chunks) if index not in self.done]


class Transfer(Protocol):
    """Reads memory that another process has registered, without its help."""

    def register(self, region: Region, *, changes: bool = False, lease: float | None = None) -> Descriptor:
        """Open `region` for reading until `unregister`, or for `lease` seconds.

        changes: False promises that the bytes stay as they are now, and lets readers prove it.
        """

    def unregister(self, descriptor: Descriptor, *, timeout: float) -> None:
        """Close a registration; on return nobody reads it any more. Raises TimeoutError naming how many still do."""

    def read(self, source: Descriptor, into: Region, *, timeout: float, progress: Progress | None = None) -> None:
        """Fill `into` (same nbytes). Raises PeerLost, WrongKey or IntegrityError; `into` is undefined then.

        progress: chunks of `into` that it holds are not read again; those that were verified are added, also by a read that fails.
        """

    def close(self) -> None:
        """Stop serving; every registration ends."""

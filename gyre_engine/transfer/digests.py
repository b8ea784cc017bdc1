"""What proves that bytes arrived as they were registered: a hash of each chunk, and one over these.

XXH64 finds damage and bytes that changed (one in 2^64 passes) nearly as fast as memory is read, also where vectors are emulated. It
proves nothing against somebody who forges bytes: who may read is up to capabilities, and weights and gradients have a SHA-256 in their
event, which readers check too (`pull`, the core).
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import xxhash

from gyre_engine.transfer.port import DIGEST_BYTES, Descriptor, IntegrityError

_HASHED_ALONE = 16 << 20


def digest_of(data: bytes | memoryview) -> bytes:
    """XXH64, big-endian. `update` lets other threads run meanwhile; the constructor and one-shot functions do not."""
    state = xxhash.xxh64()
    state.update(data)
    return state.digest()


def chunk_digests(view: memoryview, chunk: int) -> list[bytes]:
    """The hash of each chunk, in order; several at once where there is much."""

    def digest(start: int) -> bytes:
        return digest_of(view[start : start + chunk])

    starts = range(0, len(view), chunk)
    if len(view) < _HASHED_ALONE:
        return [digest(start) for start in starts]
    with ThreadPoolExecutor(min(4, os.cpu_count() or 1), "digest") as threads:
        return list(threads.map(digest, starts))


def root_digest(digests: Sequence[bytes]) -> bytes:
    """A descriptor's digest from those of its chunks."""
    return digest_of(b"".join(digests))


def checked_digests(data: bytes, source: Descriptor, peer: str) -> list[bytes]:
    """Digests of chunks, in order, known to be the descriptor's unless its memory changes. Raises IntegrityError."""
    digests = [data[at : at + DIGEST_BYTES] for at in range(0, len(data), DIGEST_BYTES)]
    if source.digest and root_digest(digests) != source.digest:
        raise IntegrityError(f"{peer} serves other bytes than its descriptor was made for")
    return digests


def verify(part: memoryview, digest: bytes, start: int, peer: str) -> None:
    """Raises IntegrityError where a chunk is not what its digest says."""
    if digest_of(part) != digest:
        raise IntegrityError(f"{peer}: bytes from {start} on are not what was registered")

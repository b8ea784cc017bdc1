"""Pages of one rank that go to other cells and come from them: exports by ticket, imports one-sided.

promises  an export is a copy, so that the store may drop what it likes: it is readable until it is released or its lease ends; an
          import is whole, verified and of this version, or it is nothing; each returns within its limit, whatever became of the
          other side; what was lent is given back once: an export that cannot end yet is tried again whenever the desk is used

What is read in one piece: the pages' keys, 32 bytes each, then the pages in the same order.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import takewhile

import numpy as np
from numpy.typing import NDArray

from gyre_engine.sampling.hicache.store import PageStore
from gyre_engine.sampling.kv import KvPart
from gyre_engine.transfer import Descriptor, Region, Transfer

logger = logging.getLogger(__name__)

KEY_BYTES = 32
"""SGLang's page keys are SHA-256."""


class KvRefused(ValueError):
    """Pages that do not fit here; the text says why, and what to do."""


@dataclass(frozen=True, slots=True)
class PageShape:
    """What a rank's pages are. Only ranks of the same name, whose pages are the same, can exchange them."""

    rank: str
    layout: str
    page_tokens: int
    page_nbytes: int


@dataclass(frozen=True, slots=True)
class DeskLimits:
    """quiet_s: how long an export waits for pages to come in; read_s: how long an import may read; release_s: for readers to leave."""

    quiet_s: float = 1.0
    read_s: float = 60.0
    release_s: float = 10.0


@dataclass(frozen=True, slots=True)
class Export:
    """One rank's share of a ticket."""

    weight_version: str
    page_tokens: int
    part: KvPart


@dataclass(slots=True)
class _Lent:
    descriptor: Descriptor
    nbytes: int
    ends: float


@dataclass(slots=True)
class PageDesk:
    """Of one rank. keys_of: the keys of the whole pages of a sequence of token ids, as the engine makes them."""

    store: PageStore
    transfer: Transfer
    shape: PageShape
    keys_of: Callable[[Sequence[int]], Sequence[str]]
    limits: DeskLimits = DeskLimits()
    _lent: dict[bytes, _Lent] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def export(self, ids: Sequence[int], lease: float) -> Export | None:
        """Open what the store has of these ids for reading; None where that is nothing."""
        self._end_what_is_over()
        version, whole = self.store.version, self.shape.page_nbytes + KEY_BYTES
        keys = self.keys_of(ids)[: self.store.capacity // 2 // whole]
        found = self.store.awaited(keys, self.limits.quiet_s)
        if version is None or not found or not self.store.lend(found * whole):
            return None
        export = None
        try:
            export = self._opened(keys[:found], version, lease)
            return export
        finally:
            if export is None:
                self.store.give_back(found * whole)

    def _opened(self, keys: Sequence[str], version: str, lease: float) -> Export | None:
        """A copy that others may read; None where the pages have left meanwhile, or are of other weights."""
        copy, found = self._copied(keys)
        if not found or self.store.version != version:
            return None
        region = Region.of_array(copy[: found * (self.shape.page_nbytes + KEY_BYTES)])
        descriptor = self.transfer.register(region, lease=lease)
        with self._lock:
            self._lent[descriptor.key_id] = _Lent(descriptor, copy.nbytes, time.monotonic() + lease)
        part = KvPart(self.shape.rank, self.shape.layout, found, self.shape.page_nbytes, descriptor.to_bytes())
        return Export(version, self.shape.page_tokens, part)

    def _copied(self, keys: Sequence[str]) -> tuple[NDArray[np.uint8], int]:
        """Keys and pages in one array, up to the first page that has left meanwhile; how many those are."""
        pages = [page for page in takewhile(lambda page: page is not None, map(self.store.get, keys)) if page is not None]
        found = len(pages)
        copy = np.empty(len(keys) * (self.shape.page_nbytes + KEY_BYTES), dtype=np.uint8)
        copy[: found * KEY_BYTES] = np.frombuffer(bytes.fromhex("".join(keys[:found])), dtype=np.uint8)
        for at, page in enumerate(pages):
            start = found * KEY_BYTES + at * self.shape.page_nbytes
            copy[start : start + self.shape.page_nbytes] = page
        return copy, found

    def take(self, version: str, part: KvPart) -> int:
        """Read pages and keep them; how many tokens are there now, none under other weights. Raises KvRefused, TransferError."""
        self._check(part)
        nbytes = part.pages * (part.page_nbytes + KEY_BYTES)
        if version != self.store.version or not nbytes:
            return 0
        if 2 * nbytes > self.store.capacity or not self.store.lend(nbytes):
            raise KvRefused(
                f"{part.pages} pages of {part.page_nbytes} bytes have no room in a store of {self.store.capacity} bytes: "
                "raise cells.engine_kv_mb"
            )
        try:
            into = np.empty(nbytes, dtype=np.uint8)
            self.transfer.read(Descriptor.from_bytes(part.descriptor), Region.of_array(into), timeout=self.limits.read_s)
            return self._kept(into, part, version) * self.shape.page_tokens
        finally:
            self.store.give_back(nbytes)

    def _kept(self, data: NDArray[np.uint8], part: KvPart, version: str) -> int:
        keys = [row.tobytes().hex() for row in data[: part.pages * KEY_BYTES].reshape(part.pages, KEY_BYTES)]
        for key, page in zip(keys, data[part.pages * KEY_BYTES :].reshape(part.pages, part.page_nbytes), strict=True):
            self.store.put(key, page.copy(), version)
        return self.store.prefix(keys)

    def _check(self, part: KvPart) -> None:
        theirs, ours = (part.rank, part.layout, part.page_nbytes), (self.shape.rank, self.shape.layout, self.shape.page_nbytes)
        if theirs != ours:
            raise KvRefused(f"pages of {theirs} do not fit {ours}: start all cells with one model, dtype, page size and layout")

    def release(self, part: KvPart) -> None:
        """Nobody reads an export any more; one that has ended already is no error. Raises TimeoutError where somebody still reads."""
        self._end_what_is_over()
        self._end(Descriptor.from_bytes(part.descriptor).key_id, self.limits.release_s)

    def _end_what_is_over(self) -> None:
        """End all exports whose lease is over; whoever still reads one holds up nobody else."""
        with self._lock:
            over = [key for key, lent in self._lent.items() if lent.ends < time.monotonic()]
        for key in over:
            try:
                self._end(key, 0.0)
            except Exception as error:  # whatever it is, it is of another export than the one asked for
                logger.warning("an export whose lease is over stays for now: %s", error)

    def _end(self, key: bytes, timeout: float) -> None:
        """End one export. Where that fails its memory may still be read: it stays lent, and is over from now on."""
        with self._lock:
            lent = self._lent.pop(key, None)
        if lent is None:
            return
        try:
            self.transfer.unregister(lent.descriptor, timeout=timeout)
        except BaseException:
            lent.ends = 0.0
            with self._lock:
                self._lent[key] = lent
            raise
        self.store.give_back(lent.nbytes)

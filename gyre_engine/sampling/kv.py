"""KV that moves between engines: what one computed for a prefix, another goes on from (method.md, 2; learning.md, 9).

promises  pages carry the version of their weights, and an engine takes only those of the version it samples with; where the run keeps
          KV across versions it takes any, and it is told which.

The bytes go through `gyre_engine.transfer`, one-sided; a ticket is what events and requests carry.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from gyre_engine.events.codec import pack, unpack
from gyre_engine.sampling.port import EngineStats


@dataclass(frozen=True, slots=True, eq=False)
class KvPages:
    """KV of a prefix, copied out of an engine.

    data: float32[layers, 2, kv_heads, tokens, head_dim], contiguous
    """

    weight_version: str
    data: NDArray[np.float32]

    @property
    def tokens(self) -> int:
        """How many tokens of the prefix it covers."""
        return int(self.data.shape[3])


@dataclass(frozen=True, slots=True)
class KvPart:
    """Whole pages that one rank of an engine holds, from the first token on, as its engine arranges them.

    rank, layout: only the rank of that name takes them, and only where a page's bytes mean the same
    descriptor:   of what is read: the pages' keys, then the pages
    """

    rank: str
    layout: str
    pages: int
    page_nbytes: int
    descriptor: bytes

    def to_fields(self) -> dict[str, Any]:
        """Plain fields for JSON: bytes as hex."""
        return {
            "rank": self.rank, "layout": self.layout, "pages": self.pages, "page_nbytes": self.page_nbytes,
            "descriptor": self.descriptor.hex(),
        }  # fmt: skip

    @classmethod
    def from_fields(cls, fields: Mapping[str, Any]) -> KvPart:
        """The inverse. Raises KeyError or ValueError."""
        pages, page_nbytes = int(fields["pages"]), int(fields["page_nbytes"])
        if pages < 0 or page_nbytes < 0:
            raise ValueError(f"a part of a ticket cannot have {pages} pages of {page_nbytes} bytes")
        return cls(str(fields["rank"]), str(fields["layout"]), pages, page_nbytes, bytes.fromhex(fields["descriptor"]))


@dataclass(frozen=True, slots=True)
class KvTicket:
    """KV that waits to be read, in one of two forms: one array with the ids that it was computed for, or pages by rank.

    shape:      of KvPages.data; empty where there are parts
    descriptor: of the pages, ids of the ids (int32[tokens]), as Descriptor.to_bytes gives them
    parts:      one a rank, each of pages of page_tokens tokens
    """

    weight_version: str
    shape: tuple[int, ...] = ()
    descriptor: bytes = b""
    ids: bytes = b""
    page_tokens: int = 0
    parts: tuple[KvPart, ...] = ()

    @property
    def tokens(self) -> int:
        """How many tokens of the prefix it covers: what all ranks have."""
        return self.page_tokens * min(part.pages for part in self.parts) if self.parts else self.shape[3]

    @property
    def nbytes(self) -> int:
        """Of the pages."""
        return sum(part.pages * part.page_nbytes for part in self.parts) if self.parts else 4 * math.prod(self.shape)

    def to_fields(self) -> dict[str, Any]:
        """Plain fields for JSON: bytes as hex."""
        if self.parts:
            parts = [part.to_fields() for part in self.parts]
            return {"weight_version": self.weight_version, "page_tokens": self.page_tokens, "parts": parts}
        return {
            "weight_version": self.weight_version,
            "shape": list(self.shape),
            "descriptor": self.descriptor.hex(),
            "ids": self.ids.hex(),
        }

    def to_bytes(self) -> bytes:
        """As an event carries it: msgpack."""
        return pack(self.to_fields())

    @classmethod
    def from_bytes(cls, data: bytes) -> KvTicket:
        """The inverse of to_bytes. Raises CodecError, KeyError or ValueError."""
        return cls.from_fields(unpack(data))

    @classmethod
    def from_fields(cls, fields: Mapping[str, Any]) -> KvTicket:
        """The inverse; unknown fields are ignored. Raises KeyError or ValueError."""
        if fields.get("parts"):
            parts = tuple(map(KvPart.from_fields, fields["parts"]))
            return cls(str(fields["weight_version"]), page_tokens=int(fields["page_tokens"]), parts=parts)
        shape = tuple(int(size) for size in fields["shape"])
        return cls(str(fields["weight_version"]), shape, bytes.fromhex(fields["descriptor"]), bytes.fromhex(fields["ids"]))


class KvMover(Protocol):
    """An engine in another process, as far as its KV is moved by ticket. Raises EngineError."""

    async def export_kv(self, rid: str, *, lease: float) -> KvTicket | None:
        """Keep the KV of a request that `drain` interrupted readable for `lease` seconds; None where there is none."""
        ...

    async def import_kv(self, ticket: KvTicket) -> int:
        """Read and cache what a ticket names; how many tokens were taken: none of other weights, unless it keeps KV of any."""
        ...

    async def release_kv(self, ticket: KvTicket) -> None:
        """Free what an export keeps."""
        ...


class KvHolder(Protocol):
    """An engine whose prefix cache can be read and filled."""

    async def stats(self) -> EngineStats:
        """Counts as they stand."""
        ...

    def interrupted(self, rid: str) -> Sequence[int] | None:
        """The ids of a request that the last `drain` interrupted, until the engine resumes."""
        ...

    async def export_kv(self, input_ids: Sequence[int]) -> KvPages:
        """A copy of what is cached of these ids, which may be a part or nothing. A request's KV is cached when it has ended."""
        ...

    async def import_kv(self, input_ids: Sequence[int], pages: KvPages) -> int:
        """Cache pages of a prefix of these ids; how many tokens were taken: none of other weights, unless it keeps KV of any."""
        ...

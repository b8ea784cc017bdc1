"""KV that moves between engines: what one computed for a prefix, another goes on from (method.md, 2; learning.md, 9).

promises  pages carry the version of their weights, and an engine takes only those of the version it samples with.

The bytes go through `gyre_engine.transfer`, one-sided; a ticket is what events and requests carry.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray


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
class KvTicket:
    """Pages that wait to be read: `descriptor` as Descriptor.to_bytes gives it, `shape` that of KvPages.data."""

    weight_version: str
    shape: tuple[int, ...]
    descriptor: bytes

    @property
    def tokens(self) -> int:
        """How many tokens of the prefix it covers."""
        return self.shape[3]

    def to_fields(self) -> dict[str, Any]:
        """Plain fields for JSON: bytes as hex."""
        return {"weight_version": self.weight_version, "shape": list(self.shape), "descriptor": self.descriptor.hex()}

    @classmethod
    def from_fields(cls, fields: Mapping[str, Any]) -> KvTicket:
        """The inverse. Raises KeyError or ValueError."""
        shape = tuple(int(size) for size in fields["shape"])
        return cls(str(fields["weight_version"]), shape, bytes.fromhex(fields["descriptor"]))


class KvHolder(Protocol):
    """An engine whose prefix cache can be read and filled."""

    async def export_kv(self, input_ids: Sequence[int]) -> KvPages:
        """A copy of what is cached of these ids, which may be a part or nothing. A request's KV is cached when it has ended."""
        ...

    async def import_kv(self, input_ids: Sequence[int], pages: KvPages) -> int:
        """Cache pages of a prefix of these ids; how many tokens were taken: none where the weights are of another version."""
        ...

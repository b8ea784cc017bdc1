"""KV between engine processes: an export is registered for one-sided reads, an import reads what a ticket names.

promises  exported pages stay readable until they are released, or their lease ends; pages of other weights are not even fetched
          by whoever compares the ticket's version first, and never taken.
"""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np

from gyre_engine.sampling.kv import KvHolder, KvPages, KvTicket
from gyre_engine.transfer import Descriptor, Region, Transfer

LEASE_SECONDS = 120.0
READ_SECONDS = 60.0
RELEASE_SECONDS = 10.0


class KvDesk:
    """Exports and imports of one engine, over one transfer."""

    def __init__(self, holder: KvHolder, transfer: Transfer) -> None:
        self._holder = holder
        self._transfer = transfer

    async def export(self, body: dict[str, Any]) -> dict[str, Any]:
        """{input_ids, lease?} -> a ticket's fields and `tokens`; no ticket where nothing of the ids is cached."""
        pages = await self._holder.export_kv(body["input_ids"])
        if not pages.tokens:
            return {"tokens": 0, "ticket": None}
        lease = float(body.get("lease", LEASE_SECONDS))
        region = Region.of_array(pages.data)
        descriptor = await asyncio.to_thread(self._transfer.register, region, lease=lease)
        ticket = KvTicket(pages.weight_version, pages.data.shape, descriptor.to_bytes())
        return {"tokens": pages.tokens, "ticket": ticket.to_fields()}

    async def take(self, body: dict[str, Any]) -> dict[str, Any]:
        """{input_ids, ticket} -> {tokens}: reads the pages and caches them."""
        ticket = KvTicket.from_fields(body["ticket"])
        data = np.empty(ticket.shape, dtype=np.float32)
        source, into = Descriptor.from_bytes(ticket.descriptor), Region.of_array(data)
        await asyncio.to_thread(self._transfer.read, source, into, timeout=READ_SECONDS)
        return {"tokens": await self._holder.import_kv(body["input_ids"], KvPages(ticket.weight_version, data))}

    async def release(self, body: dict[str, Any]) -> dict[str, Any]:
        """{ticket} -> {}: the pages were read, or nobody wants them."""
        descriptor = Descriptor.from_bytes(KvTicket.from_fields(body["ticket"]).descriptor)
        await asyncio.to_thread(self._transfer.unregister, descriptor, timeout=RELEASE_SECONDS)
        return {}

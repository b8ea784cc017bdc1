"""KV between engine processes: an export is registered for one-sided reads, an import reads what a ticket names.

promises  exported pages stay readable until they are released, or their lease ends; pages of other weights are neither fetched
          nor taken, unless the engine keeps KV across weights
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
    """Exports and imports of one engine, over one transfer. keep_kv: the engine takes KV of any version."""

    def __init__(self, holder: KvHolder, transfer: Transfer, *, keep_kv: bool = False) -> None:
        self._holder = holder
        self._transfer = transfer
        self._keep_kv = keep_kv

    async def export(self, body: dict[str, Any]) -> dict[str, Any]:
        """{rid, lease?} of an interrupted request -> {ticket, tokens}; no ticket where nothing of it is cached."""
        ids = self._holder.interrupted(str(body["rid"]))
        pages = await self._holder.export_kv(ids) if ids else None
        if ids is None or pages is None or not pages.tokens:
            return {"tokens": 0, "ticket": None}
        lease = float(body.get("lease", LEASE_SECONDS))
        known = np.array(ids[: pages.tokens], dtype=np.int32)
        data, tokens = [
            (await asyncio.to_thread(self._transfer.register, Region.of_array(a), lease=lease)).to_bytes()
            for a in (pages.data, known)
        ]
        ticket = KvTicket(pages.weight_version, pages.data.shape, data, tokens)
        return {"tokens": pages.tokens, "ticket": ticket.to_fields()}

    async def take(self, body: dict[str, Any]) -> dict[str, Any]:
        """{ticket} -> {tokens}: reads the pages and caches them; none where the weights here are others."""
        ticket = KvTicket.from_fields(body["ticket"])
        if ticket.parts:
            raise ValueError("this ticket is of another kind of engine's pages: run all cells with one cells.engine")
        if not self._keep_kv and (await self._holder.stats()).weight_version != ticket.weight_version:
            return {"tokens": 0}
        data, ids = np.empty(ticket.shape, dtype=np.float32), np.empty(ticket.tokens, dtype=np.int32)
        for descriptor, into in ((ticket.ids, ids), (ticket.descriptor, data)):
            source = Descriptor.from_bytes(descriptor)
            await asyncio.to_thread(self._transfer.read, source, Region.of_array(into), timeout=READ_SECONDS)
        return {"tokens": await self._holder.import_kv(ids.tolist(), KvPages(ticket.weight_version, data))}

    async def release(self, body: dict[str, Any]) -> dict[str, Any]:
        """{ticket} -> {}: the pages were read, or nobody wants them."""
        ticket = KvTicket.from_fields(body["ticket"])
        for descriptor in (ticket.descriptor, ticket.ids):
            await asyncio.to_thread(self._transfer.unregister, Descriptor.from_bytes(descriptor), timeout=RELEASE_SECONDS)
        return {}

"""KV of interrupted requests on its way from cell to cell, as the scheduler commands it (method.md, 2; learning.md, 9).

writes    cells: kv-exported (the source), kv-imported and, of other weights, kv-kept (the destination)
promises  pages are freed once every destination has answered or the limit is over; KV of other weights is not taken, or it is said to
          be kept; a move whose KV cannot be had costs a prefill, never the call
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

from gyre_engine.events import CodecError, Event
from gyre_engine.events.cells import OTHER_WEIGHTS, KvExported, KvImported, KvKept, Move, MoveExecutions
from gyre_engine.sampling.kv import KvMover, KvTicket
from gyre_engine.sampling.port import EngineError
from gyre_engine.scheduling.life import LifeLimits

logger = logging.getLogger(__name__)

Say = Callable[[Event], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Speaker:
    """Who moves KV, and how what it does is told."""

    cell: str
    incarnation: str
    say: Say


@dataclass(slots=True)
class Exports:
    """What this cell keeps readable for others since its last drain. limits: of the state in which it does."""

    engine: KvMover
    speaker: Speaker
    limits: LifeLimits
    _kept: dict[str, KvTicket] = field(default_factory=dict)
    _asked: set[tuple[int, int, str]] = field(default_factory=set)

    async def export(self, moves: MoveExecutions) -> None:
        """Register the KV of each move that takes it along, and say so; what is not there is said as an export of nothing."""
        for move in moves.moves:
            key = (*moves.drained, move.rid)
            if move.with_kv and key not in self._asked:
                self._asked.add(key)
                await self._export(moves, move)

    async def _export(self, moves: MoveExecutions, move: Move) -> None:
        began = time.monotonic()
        try:
            ticket = await self.engine.export_kv(move.rid, lease=2 * self.limits.exporting_of(moves.moves))
        except EngineError as error:
            logger.warning("%s cannot export the KV of %s: %s", self.speaker.cell, move.execution, error)
            ticket = None
        if ticket is not None:
            self._kept[move.rid] = ticket
        await self.speaker.say(
            KvExported(
                cell=self.speaker.cell, incarnation=self.speaker.incarnation, command_epoch=moves.drained[0],
                command_number=moves.drained[1], execution=move.execution, rid=move.rid, destination=move.destination,
                tokens=ticket.tokens if ticket else 0, nbytes=ticket.nbytes if ticket else 0,
                weight_version=ticket.weight_version if ticket else "", ticket=ticket.to_bytes() if ticket else b"",
                took_us=_since(began),
            )
        )  # fmt: skip

    async def free(self) -> None:
        """Nobody reads any more, or nobody may. What the engine does not let go ends with its lease."""
        kept, self._kept, self._asked = self._kept, {}, set()
        for rid, ticket in kept.items():
            try:
                await self.engine.release_kv(ticket)
            except EngineError as error:
                logger.warning("%s: the KV of %s stays until its lease ends: %s", self.speaker.cell, rid, error)


@dataclass(slots=True)
class Imports:
    """What other cells offer to this one. `serving`: whether calls come here now; else nothing is taken.

    keeps: the engine's version, where it takes KV of others too
    """

    engine: KvMover
    speaker: Speaker
    keeps: Callable[[], int] | None = None
    _running: dict[tuple[str, str], asyncio.Task[None]] = field(default_factory=dict)

    def take(self, offers: Mapping[tuple[str, str], KvExported], *, serving: bool) -> None:
        """Begin to import what is offered and was not begun yet. Raises what an answer before could not be logged for."""
        for task in [task for task in self._running.values() if task.done()]:
            task.result()
        self._running = {key: task for key, task in self._running.items() if key in offers}
        for key, offer in offers.items():
            if key not in self._running:
                self._running[key] = asyncio.create_task(self._import(offer, serving))

    async def stop(self) -> None:
        """Give up what is under way."""
        for task in self._running.values():
            task.cancel()
        await asyncio.gather(*self._running.values(), return_exceptions=True)

    async def _import(self, offer: KvExported, serving: bool) -> None:
        began, tokens, reason = time.monotonic(), 0, ""
        if not serving:
            reason = "this cell does not sample"
        elif not offer.tokens:
            reason = "the source had nothing of it"
        else:
            try:
                tokens = await self.engine.import_kv(KvTicket.from_bytes(offer.ticket))
                reason = "" if tokens else OTHER_WEIGHTS
            except (EngineError, CodecError, LookupError, ValueError) as error:  # the engine's word, or a ticket that is none
                reason = str(error)[:300]
        if tokens:
            await self._tell_kept(offer, tokens)
        if reason:
            logger.warning("%s takes no KV of %s from %s: %s", self.speaker.cell, offer.execution, offer.cell, reason)
        await self.speaker.say(
            KvImported(
                cell=self.speaker.cell, incarnation=self.speaker.incarnation, source=offer.cell,
                command_epoch=offer.command_epoch, command_number=offer.command_number, execution=offer.execution,
                rid=offer.rid, tokens=tokens, nbytes=offer.nbytes if tokens else 0, took_us=_since(began), reason=reason,
            )
        )  # fmt: skip

    async def _tell_kept(self, offer: KvExported, tokens: int) -> None:
        version = self.keeps() if self.keeps else None
        if version is not None and offer.weight_version != str(version):
            await self.speaker.say(
                KvKept(
                    cell=self.speaker.cell, incarnation=self.speaker.incarnation, from_version=int(offer.weight_version),
                    to_version=version, tokens=tokens, source=offer.cell,
                )
            )  # fmt: skip


def _since(began: float) -> int:
    return int((time.monotonic() - began) * 1e6)

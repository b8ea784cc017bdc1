"""The cell agent: makes the engine do what the log commands, and says what the cell does.

reads     commands, training (publications)
writes    cells
promises  an engine serves only with the weights that it should sample with; a role change is logged when it has happened;
          neither engine nor trainer is rebuilt at a switch; an engine that is away is waited for, within a limit, and the agent
          ends at once when it is told to meanwhile
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Coroutine
from dataclasses import dataclass, field
from pathlib import Path

from gyre_engine.events import Event, Recorded
from gyre_engine.events.cells import CellHealth, CellRole, CellStarted, ProbeGap, RoleChanged, WeightsLoaded
from gyre_engine.events.training import Published
from gyre_engine.log import Follower, Log
from gyre_engine.log.catching_up import catch_up
from gyre_engine.sampling.port import EngineError, EngineStats, InferenceEngine
from gyre_engine.scheduling.classes import ClassPlan
from gyre_engine.transfer import IntegrityError, PeerLost, Transfer, WrongKey
from producers.cells.orders import Orders, obey
from producers.cells.snapshot import Snapshots

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class AgentSettings:
    """`model_path`: the initial model's folder; `scratch`: where pulled weights are put for the engine."""

    cell: str
    position: int
    incarnation: str
    engine: str
    engine_url: str
    capacity: int
    model_path: str
    scratch: str
    plan: ClassPlan
    secret: bytes = field(default=b"", repr=False)
    start_limit_s: float = 600.0
    health_s: float = 5.0
    poll_s: float = 0.5


ASK_AGAIN_S = 0.2


class EngineAway(RuntimeError):
    """The cell's engine did not come up within the limit."""


class CellAgent:
    """One cell's agent. `run` lives until `ending` is set."""

    def __init__(self, settings: AgentSettings, log: Log, engine: InferenceEngine, transfer: Transfer) -> None:
        self._settings, self._log, self._engine = settings, log, engine
        self._snapshots = Snapshots(Path(settings.model_path), Path(settings.scratch), transfer)
        self._orders = Orders(settings.cell, settings.plan)
        self._role = CellRole.SWITCHING
        self._version = -1

    async def run(self, ending: asyncio.Event) -> None:
        """Come up, then obey until `ending`."""
        follower = self._log.follow(("commands", "training"))
        try:
            await asyncio.to_thread(catch_up, follower, self._take, f"the agent of {self._settings.cell}")
            await _unless(ending, self._come_up())
            next_health = time.monotonic()
            while not ending.is_set():
                await self._read(follower, self._settings.poll_s)
                await _unless(ending, self._settle())
                if time.monotonic() >= next_health:
                    await _unless(ending, self._report_health())
                    next_health = time.monotonic() + self._settings.health_s
        finally:
            follower.close()
            await self._engine.close()

    async def _read(self, follower: Follower, timeout: float) -> None:
        for record in await asyncio.to_thread(follower.poll, timeout):
            self._take(record)

    def _take(self, record: Recorded) -> None:
        self._orders = obey(self._orders, record.event)

    async def _come_up(self) -> None:
        """Take up the engine once it serves; one that goes away meanwhile is waited for again. Raises EngineAway at the limit."""
        s, last = self._settings, ""
        deadline = time.monotonic() + s.start_limit_s
        while True:
            try:
                return await self._take_up()
            except EngineError as error:
                if time.monotonic() >= deadline:
                    raise EngineAway(
                        f"{s.cell}: its engine at {s.engine_url} was not up after {s.start_limit_s:.0f} s: {error}"
                    ) from error
                if str(error) != last:
                    logger.warning("%s waits for its engine at %s: %s", s.cell, s.engine_url, error)
                last = str(error)
            await asyncio.sleep(ASK_AGAIN_S)

    async def _take_up(self) -> None:
        """Give the engine its weights and its role, and announce the cell."""
        self._version = int((await self._engine.stats()).weight_version)
        await self._engine.pause(abort=True)
        self._role = CellRole.SWITCHING
        if await self._take_weights():
            if self._orders.role is CellRole.SAMPLING:
                await self._engine.resume()
            self._role = self._orders.role
        await self._say(self._started())

    def _started(self) -> CellStarted:
        s = self._settings
        return CellStarted(
            cell=s.cell, position=s.position, incarnation=s.incarnation, engine=s.engine, engine_url=s.engine_url,
            capacity=s.capacity, role=self._role, weight_version=self._version,
        )  # fmt: skip

    async def _settle(self) -> None:
        """Bring the engine to what is ordered: first its weights, then its role."""
        try:
            if self._role is not self._orders.role:
                await self._switch()
            elif self._role is CellRole.SAMPLING and self._stale():
                await self._take_weights()
        except EngineError as error:
            await self._engine_lost(str(error))

    def _stale(self) -> bool:
        return self._orders.weights is not None and self._orders.weights.version != self._version

    async def _switch(self) -> None:
        began, aborted, command = time.monotonic(), 0, self._orders.switch
        if self._orders.role is CellRole.TRAINING:
            aborted = (await self._engine.stats()).running
            await self._engine.pause(abort=True)
        elif await self._take_weights():
            await self._engine.resume()
        else:
            return
        self._role = self._orders.role
        await self._say(
            RoleChanged(
                cell=self._settings.cell, incarnation=self._settings.incarnation, role=self._role,
                command_epoch=command.epoch if command else 0, command_number=command.number if command else 0,
                aborted_requests=aborted, took_us=int((time.monotonic() - began) * 1e6),
            )
        )  # fmt: skip

    async def _take_weights(self) -> bool:
        """Load the ordered version; whether the engine holds it now. Its source may be gone until the core publishes again."""
        ordered = self._orders.weights
        if ordered is None or ordered.version == self._version:
            return True
        began = time.monotonic()
        try:
            folder = await asyncio.to_thread(self._snapshots.pull, ordered)
        except (PeerLost, WrongKey, IntegrityError) as error:
            logger.warning("%s: version %d cannot be read yet: %s", self._settings.cell, ordered.version, error)
            return False
        await self._engine.load_weights(folder, str(ordered.version))
        self._version = ordered.version
        self._snapshots.keep_only(ordered.version)
        took = int((time.monotonic() - began) * 1e6)
        s = self._settings
        await self._say(
            WeightsLoaded(
                cell=s.cell, incarnation=s.incarnation, version=ordered.version, weights_hash=ordered.weights_hash, took_us=took
            )
        )
        await self._probe(ordered)
        return True

    async def _probe(self, published: Published) -> None:
        """Score the recorded probe with the engine: the gap between engine and trainer (learning.md, 8)."""
        ids = published.probe_ids
        if len(ids) < 2 or len(published.probe_logprobs) != len(ids) - 1:
            return
        scores = await self._engine.score([int(i) for i in ids])
        gaps = [abs(a - float(b)) for a, b in zip(scores, published.probe_logprobs, strict=True)]
        await self._say(
            ProbeGap(
                cell=self._settings.cell, version=published.version, tokens=len(gaps), gap_max=max(gaps),
                gap_mean=sum(gaps) / len(gaps),
            )
        )  # fmt: skip

    async def _report_health(self) -> None:
        try:
            stats = await self._engine.stats()
        except EngineError as error:
            await self._engine_lost(str(error))
            return
        if int(stats.weight_version) != self._version or stats.paused != (self._role is not CellRole.SAMPLING):
            # The engine is not the one that this agent knew: it was restarted.
            await self._come_up()
            return
        await self._say(self._health(stats))

    async def _engine_lost(self, reason: str) -> None:
        """Say that the engine is away, wait for its next life, and take it up."""
        s = self._settings
        await self._say(CellHealth(cell=s.cell, incarnation=s.incarnation, healthy=False, reason=reason[:500]))
        await self._come_up()

    def _health(self, stats: EngineStats) -> CellHealth:
        s = self._settings
        return CellHealth(
            cell=s.cell, incarnation=s.incarnation, healthy=True, running=stats.running, waiting=stats.waiting,
            kv_tokens=stats.kv_tokens_used, generated_tokens=stats.generated_tokens, prefilled_tokens=stats.prefill_tokens,
            reused_tokens=stats.cache_hit_tokens,
        )  # fmt: skip

    async def _say(self, event: Event) -> None:
        # Shielded: the log acknowledges also what an ending process does not wait for any more.
        await asyncio.shield(asyncio.wrap_future(self._log.append(event)))


async def _unless(ending: asyncio.Event, work: Coroutine[None, None, None]) -> None:
    """Do `work`, or leave it where it stands as soon as `ending` is set."""
    doing, ended = asyncio.ensure_future(work), asyncio.ensure_future(ending.wait())
    try:
        await asyncio.wait((doing, ended), return_when=asyncio.FIRST_COMPLETED)
        if doing.done():
            doing.result()
    finally:
        doing.cancel()
        ended.cancel()
        await asyncio.gather(doing, ended, return_exceptions=True)

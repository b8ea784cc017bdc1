"""The cell agent: leads a cell through its life (gyre_engine.scheduling.life) as the log commands, and says what the cell does.

reads     commands, training (the ledger, publications), cells (KV that others export, weights that they hold)
writes    cells
promises  a cell does in each state what `_ACTIONS` names and nothing else, so that only transitions of the table can happen; an engine
          serves only with the weights that it should sample with; a change of role is logged when it has happened; neither engine nor
          trainer is rebuilt at a switch; each state's limit holds; the agent ends at once when it is told to, when its cell has
          left the run, and when a later start of the same cell leads it
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from pathlib import Path

from gyre_engine.events import Event, Recorded
from gyre_engine.events.cells import (
    CellRole,
    CellStarted,
    Drained,
    Interrupted,
    LifeChanged,
    LifeState,
    LifeTrigger,
    RoleChanged,
)
from gyre_engine.log import Follower, Log
from gyre_engine.log.catching_up import catch_up
from gyre_engine.log.election import Deposed
from gyre_engine.sampling.kv import KvMover
from gyre_engine.sampling.port import EngineError, InferenceEngine
from gyre_engine.sampling.rids import execution_of
from gyre_engine.scheduling.broadcast import Tree
from gyre_engine.scheduling.life import after, role_of
from gyre_engine.transfer import Transfer
from producers.cells.health import Health
from producers.cells.kv_moves import Exports, Imports, Speaker
from producers.cells.memory import Memory
from producers.cells.orders import Orders, obey
from producers.cells.settings import AgentSettings
from producers.cells.snapshot import Snapshots
from producers.cells.weights import Weights

logger = logging.getLogger(__name__)

S, T = LifeState, LifeTrigger
TOPICS = ("commands", "training", "cells")


ASK_AGAIN_S = 0.2
LONGEST_PAUSE_S = 10.0
"""Before a cell that is lost again and again, as its engine refuses what it is given, is taken up once more."""
SETTLE_S = 1.0
"""How long a cell that leaves gives what its trainer has just written to be read."""
AWAY = (S.STARTING, S.LOST)
"""States in which the engine is waited for."""
SERVING = (S.SAMPLING, S.FINISHING)
"""States in which it runs calls."""


class EngineAway(RuntimeError):
    """The cell's engine did not come up within the limit."""


class CellAgent:
    """One cell's agent. `run` lives until `ending` is set or the cell is gone. kv: the engine, where it can move KV."""

    def __init__(
        self, settings: AgentSettings, log: Log, engine: InferenceEngine, transfer: Transfer, kv: KvMover | None = None
    ) -> None:
        self._settings, self._log, self._engine = settings, log, engine
        speaker = Speaker(settings.cell, settings.incarnation, self._say)
        snapshots = Snapshots(Path(settings.model_path), Path(settings.scratch), transfer)
        tree = Tree(settings.order, settings.fanout)
        self._weights = Weights(engine, snapshots, speaker, tree, settings.patience_s, settings.keep_kv)
        self._health = Health(settings.cell, settings.incarnation)
        self._memory = Memory(engine, self._weights, settings.release_memory)
        self._exports = Exports(kv, speaker, settings.limits) if kv else None
        self._imports = Imports(kv, speaker, (lambda: self._weights.version) if settings.keep_kv else None) if kv else None
        self._orders = Orders(settings.cell, settings.plan)
        self._state, self._since, self._left_rest = S.STARTING, time.monotonic(), time.monotonic()
        self._announced = self._leads = False
        self._interrupted: tuple[Interrupted, ...] = ()
        self._obeyed: tuple[CellRole, tuple[int, int]] | None = None
        """The last change of role that was told, and by which command."""
        self._finished_for = -1
        """The version for which calls in flight were let end last."""
        self._losses = 0
        """One after the other, without a role in between."""
        self._why = ""
        self._away = ""
        """What was last said of an engine that is waited for."""

    async def run(self, ending: asyncio.Event) -> bool:
        """Come up, then obey until `ending`; whether the cell has left the run."""
        follower = self._log.follow(TOPICS)
        try:
            await asyncio.to_thread(catch_up, follower, self._take, f"the agent of {self._settings.cell}")
            next_health = time.monotonic()
            while not ending.is_set():
                await _unless(ending, self._live())
                if self._state is S.GONE:
                    return True
                if self._state not in AWAY and time.monotonic() >= next_health and not ending.is_set():
                    await _unless(ending, self._report_health())
                    next_health = time.monotonic() + self._settings.health_s
                await self._read(follower, ASK_AGAIN_S if self._state in (*AWAY, S.FINISHING) else self._settings.poll_s)
            return False
        finally:
            follower.close()
            if self._imports:
                await self._imports.stop()
            await self._engine.close()

    async def _read(self, follower: Follower, timeout: float) -> None:
        for record in await asyncio.to_thread(follower.poll, timeout):
            self._take(record)

    def _take(self, record: Recorded) -> None:
        self._orders, s = obey(self._orders, record.event), self._settings
        state = self._orders.fleet.cells.get(s.cell)
        leads = state is not None and state.incarnation == s.incarnation
        if state is not None and self._leads and not leads:
            raise Deposed(
                f"{s.cell}: its agent {s.incarnation} ends: {state.incarnation} has started after it and leads the cell"
            )
        self._leads = leads

    async def _live(self) -> None:
        """Go on from state to state as far as it goes now."""
        if self._imports:
            self._imports.take(self._orders.offers, serving=self._state is S.SAMPLING)
        while (trigger := await self._next()) is not None:
            await self._move(trigger)
            if self._state is S.LOST:
                return  # what was read meanwhile may help it

    async def _next(self) -> LifeTrigger | None:
        """What the state's action comes to within its limit."""
        limit = self._limit()
        left = None if limit is None else self._since + limit - time.monotonic()
        try:
            async with asyncio.timeout(None if left is None else max(left, ASK_AGAIN_S)):
                trigger = await self._ACTIONS[self._state](self)
        except EngineError as error:
            self._why = str(error)[:500]
            return T.ENGINE_LOST
        except TimeoutError:
            trigger = None
        if trigger is None and left is not None and time.monotonic() >= self._since + (limit or 0.0):
            self._why = f"{self._state} took longer than {limit:g} s"
            return T.LET_GO if self._state is S.EXPORTING and self._leaves else T.TIMED_OUT
        return trigger

    def _limit(self) -> float | None:
        """Of the state; while the engine is away, that of whoever waits for it."""
        limits, moves = self._settings.limits, self._orders.moves
        if self._state is S.EXPORTING and moves is not None and moves.drained == self._orders.command:
            return limits.exporting_of(moves.moves)
        return None if self._state in AWAY else limits.of(self._state)

    @property
    def _leaves(self) -> bool:
        return self._orders.role is CellRole.LEFT

    async def _move(self, trigger: LifeTrigger) -> None:
        before, now, s = self._state, time.monotonic(), self._settings
        state = after(before, trigger)
        if before in (*SERVING, S.TRAINING, S.JOINING):
            self._left_rest = now
        took, self._state, self._since, why, self._why = int((now - self._since) * 1e6), state, now, self._why, ""
        await self._say(
            LifeChanged(
                cell=s.cell, incarnation=s.incarnation, before=before, trigger=trigger, after=state, took_us=took, detail=why
            )
        )  # fmt: skip
        if state is S.LOST:
            self._announced, self._obeyed, self._losses = False, None, self._losses + 1
            self._memory.forget()
            await self._say(self._health.lost(why))
        elif role_of(state) not in (CellRole.SWITCHING, role_of(before)):
            self._losses = 0
            await self._arrived(before)

    async def _arrived(self, was: LifeState) -> None:
        """In the role that it was told to take; after a publication in the one that it had."""
        s, (epoch, number) = self._settings, self._orders.command
        obeyed, self._obeyed = self._obeyed, (role_of(self._state), (epoch, number))
        if not self._announced:
            await self._announce()
            return
        if obeyed == self._obeyed:
            return
        await self._say(
            RoleChanged(
                cell=s.cell, incarnation=s.incarnation, role=role_of(self._state), command_epoch=epoch, command_number=number,
                aborted_requests=len(self._interrupted) if was is S.EXPORTING else 0,
                took_us=int((time.monotonic() - self._left_rest) * 1e6),
            )
        )  # fmt: skip

    async def _announce(self) -> None:
        s = self._settings
        self._announced = True
        await self._say(
            CellStarted(
                cell=s.cell, position=s.position, incarnation=s.incarnation, engine=s.engine, engine_url=s.engine_url,
                capacity=s.capacity, role=role_of(self._state), weight_version=self._weights.version,
            )
        )  # fmt: skip

    async def _come_up(self) -> LifeTrigger | None:
        """Take up the engine if it serves now. Raises EngineAway at the limit."""
        s, limit = self._settings, self._settings.limits.starting
        if self._leaves:
            return T.TOLD_TO_LEAVE
        if self._losses > 1 and time.monotonic() < self._since + min(ASK_AGAIN_S * 2**self._losses, LONGEST_PAUSE_S):
            return None
        try:
            self._weights.version = int((await self._engine.stats()).weight_version)
            await self._engine.pause(abort=True)
        except EngineError as error:
            if time.monotonic() >= self._since + limit:
                away = f"{s.cell}: its engine at {s.engine_url} was not up after {limit:.0f} s: {error}"
                raise EngineAway(away) from error
            if str(error) != self._away:
                logger.warning("%s waits for its engine at %s: %s", s.cell, s.engine_url, error)
            self._away = str(error)
            return None
        return T.BACK_TO_TRAIN if self._orders.role is CellRole.TRAINING else T.BACK_TO_SAMPLE

    async def _sampling(self) -> LifeTrigger | None:
        if self._orders.role is not CellRole.SAMPLING:
            return T.TOLD_TO_LEAVE if self._leaves else T.TOLD_TO_TRAIN
        if self._settings.drain:
            ready = await self._weights.ready(self._orders)
            if ready is not None and ready != self._finished_for:
                self._finished_for = ready
                return T.PUBLISHED
            if ready is not None:
                await self._go_on_under(ready)
        else:
            await self._weights.take(self._orders)
        await self._weights.probe(self._orders)
        return None

    async def _go_on_under(self, version: int) -> None:
        """The limit is over: moved or not, what is in flight would end under other weights; here it loses nothing."""
        limit = self._settings.limits.finishing
        logger.warning("%s: calls in flight for %g s more go on under version %d", self._settings.cell, limit, version)
        await self._engine.resume()  # the limit may have come while it was paused
        await self._weights.take(self._orders)

    async def _finishing(self) -> LifeTrigger | None:
        """Until nothing is in flight, calls too that came before others knew of it: only an engine without any stays paused."""
        if self._orders.role is not CellRole.SAMPLING:
            return T.TOLD_TO_LEAVE if self._leaves else T.TOLD_TO_TRAIN
        if await self._busy():
            return None
        await self._engine.pause(abort=False)
        if not await self._busy():
            return T.FINISHED
        await self._engine.resume()
        return None

    async def _busy(self) -> bool:
        stats = await self._engine.stats()
        return stats.running + stats.waiting > 0

    async def _draining(self) -> LifeTrigger:
        found = await self._engine.drain()
        self._interrupted = tuple(Interrupted(execution_of(one.rid), one.rid, one.tokens) for one in found)
        s, (epoch, number) = self._settings, self._orders.command
        await self._say(
            Drained(
                cell=s.cell, incarnation=s.incarnation, command_epoch=epoch, command_number=number,
                weight_version=self._weights.version, requests=self._interrupted,
            )
        )  # fmt: skip
        return T.DRAINED

    async def _exporting(self) -> LifeTrigger | None:
        """Until what the scheduler lets move has moved."""
        moves, done = self._orders.moves, T.LET_GO if self._leaves else T.EXPORTED
        if self._interrupted and self._exports is not None:
            if moves is None or moves.drained != self._orders.command:
                return None
            await self._exports.export(moves)
            awaited = {move.rid for move in moves.moves if move.with_kv}
            if not awaited <= self._orders.imported:
                return None
            await self._exports.free()
        await self._memory.give()  # before the trainer is told: it needs it at once
        return done

    async def _joining(self) -> LifeTrigger | None:
        if self._exports:
            await self._exports.free()
        if self._orders.role is CellRole.SAMPLING:
            return T.TOLD_TO_SAMPLE
        await self._memory.give()
        if self._orders.member:
            return T.JOINED
        return T.TOLD_TO_LEAVE if self._leaves else None

    async def _training(self) -> LifeTrigger | None:
        if self._orders.role is not CellRole.TRAINING:
            return T.TOLD_TO_LEAVE if self._leaves else T.TOLD_TO_SAMPLE
        return None if self._orders.member else T.STEP_OVER

    async def _sealing(self) -> LifeTrigger | None:
        """Until the trainer has sealed what it had, in memory of its own, or its work went back; a cell that leaves stays until the
        core has merged that memory.
        """
        member = self._orders.member
        if self._leaves:
            return None if member or time.monotonic() < self._since + SETTLE_S else T.LET_GO
        return T.LEFT if member is None or member.sealed else None

    async def _refreshing(self) -> LifeTrigger | None:
        if self._orders.role is not CellRole.SAMPLING:
            await self._engine.abort(None)  # SGLang keeps what reached it after the pause
            return T.TOLD_TO_LEAVE if self._leaves else T.TOLD_TO_TRAIN
        await self._memory.take_back()
        if await self._weights.take(self._orders):
            await self._engine.resume()
            return T.REFRESHED
        if not self._announced:
            await self._announce()
        return None

    async def _gone(self) -> None:
        """Nothing follows."""

    _ACTIONS: Mapping[LifeState, Callable[[CellAgent], Awaitable[LifeTrigger | None]]] = {
        S.STARTING: _come_up,
        S.SAMPLING: _sampling,
        S.FINISHING: _finishing,
        S.DRAINING: _draining,
        S.EXPORTING: _exporting,
        S.JOINING: _joining,
        S.TRAINING: _training,
        S.SEALING: _sealing,
        S.REFRESHING: _refreshing,
        S.LOST: _come_up,
        S.GONE: _gone,
    }

    async def _report_health(self) -> None:
        try:
            stats = await self._engine.stats()
        except EngineError as error:
            self._why = str(error)[:500]
            await self._move(T.ENGINE_LOST)
            return
        serving = self._state in SERVING
        if int(stats.weight_version) != self._weights.version or stats.paused is serving:
            self._why = "the engine is not the one that this agent knew: it was restarted"
            await self._move(T.ENGINE_LOST)
            return
        await self._say(self._health.well(stats))

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

"""The router: leases of engines to calls, as the routes stand at the moment.

reads     cells, commands (through `apply`)
promises  a call waits for room no longer than it is told to; an execution counts once on its cell however many calls
          it has open; an execution comes back to its cell while that samples; one that a switch interrupted goes on
          where the scheduler says, for which room is kept, and waits for its KV no longer than that is worth; who has a lease
          hears when its cell goes away
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from gyre_engine.events import Event
from gyre_engine.events.executions import Dispatched
from gyre_engine.sampling.port import InferenceEngine
from gyre_engine.scheduling.cells import CellState
from producers.proxy.exchange import unavailable
from producers.proxy.moves import Moves
from producers.proxy.routes import Routes, choose, observe

Connect = Callable[[str], InferenceEngine]
"""A client of the engine at a URL."""

MOVE_WAIT_S = 2.0
"""How long an interrupted call waits for the scheduler's word, which says how long its KV is worth waiting for."""
AVOID_S = 1.0
"""How long a cell that failed is passed over where another one samples."""


@dataclass(frozen=True, slots=True)
class Lease:
    """An engine lent to one call. away: set while its cell does not answer (gyre_engine.scheduling.cells.Fleet.away)."""

    cell: str
    execution: str
    engine: InferenceEngine
    away: asyncio.Event


class Router:
    """Lends engines. Bounded: one engine client a cell that was seen, one sticky cell and one version an execution until `forget`."""

    def __init__(self, connect: Connect) -> None:
        self.routes = Routes()
        self._moves = Moves()
        self._going_on: Counter[tuple[str, str]] = Counter()
        """(source, execution) of interrupted calls that wait to go on."""
        self._connect = connect
        self._engines: dict[str, tuple[str, InferenceEngine]] = {}
        self._sticky: dict[str, str] = {}
        self._version: dict[str, int] = {}
        self._open: dict[str, Counter[str]] = {}
        self._avoid: dict[str, float] = {}
        self._away: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)
        self._waiters: list[asyncio.Future[None]] = []

    def apply(self, events: Iterable[Event]) -> None:
        """Take in events and wake those that wait."""
        for event in events:
            self.routes = observe(self.routes, event)
            self._moves.apply(event, self.routes.fleet.epoch)
            if isinstance(event, Dispatched):
                self._version[event.execution] = event.weight_version
        self._tell_who_is_away()
        self._wake()

    async def acquire(self, execution: str, *, source: str = "", timeout: float) -> Lease:
        """An engine with room. Raises ProxyError (503) after `timeout` seconds without one, what it waits for word included.

        source: the cell that did not finish the call before
        """
        deadline = time.monotonic() + timeout
        self._going_on[source, execution] += 1
        try:
            if source:
                await self._heard(execution, source, deadline)
            if (lease := await self._with_room(execution, source, deadline)) is None:
                raise unavailable("no_sampling_cell", f"no cell with room sampled for {timeout:.0f} s; {self._state()}")
            return lease
        finally:
            self._going_on[source, execution] -= 1
            self._going_on += Counter()  # drops what is zero

    async def _with_room(self, execution: str, source: str, deadline: float) -> Lease | None:
        while (lease := self.at_once(execution, source=source)) is None and (left := deadline - time.monotonic()) > 0:
            await self._change(left)
        return lease

    async def _heard(self, execution: str, source: str, deadline: float) -> None:
        """Wait for word of where an interrupted execution goes on, then for its KV."""
        word = min(deadline, time.monotonic() + MOVE_WAIT_S)
        while self._moves.undecided(execution, source, self.routes.fleet.commands) and (left := word - time.monotonic()) > 0:
            await self._change(left)
        heard = time.monotonic()
        while (left := min(deadline, heard + self._worth(execution, source)) - time.monotonic()) > 0:
            await self._change(left)

    def _worth(self, execution: str, source: str) -> float:
        return self._moves.worth_s(execution, source, self.routes.fleet.commands)

    def at_once(self, execution: str, *, source: str = "") -> Lease | None:
        """An engine, if one has room now."""
        cell = self._choose(execution, source)
        if cell is None:
            return None
        self._sticky[execution] = cell.cell
        self._open.setdefault(cell.cell, Counter())[execution] += 1
        return Lease(cell.cell, execution, self._engine(cell), self._away[cell.cell])

    def release(self, lease: Lease) -> None:
        """The call is done with its engine."""
        open_calls = self._open[lease.cell]
        open_calls[lease.execution] -= 1
        if open_calls[lease.execution] <= 0:
            del open_calls[lease.execution]
        self._wake()

    def avoid(self, lease: Lease) -> None:
        """Pass the lease's cell over for a moment: it failed or did not serve."""
        self._avoid[lease.cell] = time.monotonic() + AVOID_S

    def forget(self, execution: str) -> None:
        """The execution is over."""
        self._sticky.pop(execution, None)
        self._version.pop(execution, None)

    async def close(self) -> None:
        """Close every engine client."""
        for _, engine in self._engines.values():
            await engine.close()

    def _tell_who_is_away(self) -> None:
        fleet = self.routes.fleet
        for cell in fleet.cells:
            away = self._away[cell]
            away.set() if fleet.away(cell) else away.clear()

    def _choose(self, execution: str, source: str) -> CellState | None:
        now, load = time.monotonic(), self._load(execution)
        named = self._moves.destination(execution, source, self.routes.fleet.commands) if source else None
        avoid = frozenset(cell for cell, until in self._avoid.items() if until > now)
        version = self._version.get(execution, 0)
        sticky, moved = named or self._sticky.get(execution), bool(source) and named is None
        return choose(self.routes, load, sticky=sticky, moved=moved, avoid=avoid, version=version)

    def _load(self, execution: str) -> Counter[str]:
        """Executions by cell besides this one: with an open call, or on their way there from where their call is open still."""
        load = Counter({cell: len(calls) - (execution in calls) for cell, calls in self._open.items()})
        for source in {cell for cell, calls in self._open.items() if calls} | {source for source, _ in self._going_on}:
            for other, destination in self._moves.expected(source, self.routes.fleet.commands):
                on_its_way = other in self._open.get(source, ()) or (source, other) in self._going_on
                load[destination] += other != execution and on_its_way and other not in self._open.get(destination, ())
        return load

    def _engine(self, cell: CellState) -> InferenceEngine:
        url, engine = self._engines.get(cell.cell, ("", None))
        if engine is None or url != cell.url:
            engine = self._connect(cell.url)
            self._engines[cell.cell] = (cell.url, engine)
        return engine

    async def _change(self, timeout: float) -> None:
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        try:
            await asyncio.wait_for(waiter, timeout)
        except TimeoutError:
            return
        finally:
            if waiter in self._waiters:
                self._waiters.remove(waiter)

    def _wake(self) -> None:
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    def _state(self) -> str:
        fleet = self.routes.fleet
        known = [f"{c.cell} {'away' if fleet.away(c.cell) else c.role.value} v{c.version}" for c in fleet.cells.values()]
        return f"cells: {', '.join(known)}" if known else "no cell has started yet"

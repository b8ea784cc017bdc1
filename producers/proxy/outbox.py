"""The outbox: what one proxy puts on the log, in order, until it stands there.

writes    model-calls, tool-events
promises  events of one execution are acknowledged one after the other, so a record is never on the log before its
          parent; an event that was not acknowledged is tried again, under the same id, before any later one of its
          execution; while the log is away `ready` waits
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from gyre_engine.events import Event
from gyre_engine.log.port import Log, LogUnavailable, Place
from producers.proxy.exchange import unavailable

log_ = logging.getLogger(__name__)

PATIENCE_S = 2.0
"""An acknowledgement that takes longer means that the log is away."""
PAUSE_S = 0.5


class Outbox:
    """Appends with acknowledgement. State: one lock an execution with unacknowledged events, the set of loose acknowledgements."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._locks: dict[str, asyncio.Lock] = {}
        self._here = asyncio.Event()
        self._here.set()
        self._loose: set[asyncio.Future[Place]] = set()

    @property
    def away(self) -> bool:
        """Whether the log has stopped to acknowledge."""
        return not self._here.is_set()

    async def ready(self, timeout: float) -> None:
        """Wait until the log acknowledges again. Raises ProxyError (503) after `timeout` seconds."""
        if not self.away:
            return
        try:
            await asyncio.wait_for(self._here.wait(), timeout)
        except TimeoutError:
            raise unavailable("log_unavailable", f"the event log did not answer for {timeout:.0f} s") from None

    async def put(self, execution: str, make: Callable[[], tuple[Event, str]], stands: Callable[[], None]) -> None:
        """Append the event that `make` gives when its turn comes (with its id); call `stands` once it is acknowledged.

        Does not end before: give it a task of its own, and wait for that as long as a client is worth it.
        """
        lock = self._locks.setdefault(execution, asyncio.Lock())
        async with lock:
            event, event_id = make()
            while not await self._stands(event, event_id):
                await asyncio.sleep(PAUSE_S)
            stands()

    def forget(self, execution: str) -> None:
        """The execution is closed."""
        self._locks.pop(execution, None)

    def tell(self, event: Event, event_id: str) -> None:
        """Append an event that no answer waits for; `settle` waits for it."""
        try:
            place = asyncio.wrap_future(self._log.append(event, id=event_id))
        except LogUnavailable as error:
            self._lost(event, error)
            return
        self._loose.add(place)
        place.add_done_callback(lambda done: self._told(event, done))

    async def settle(self, timeout: float) -> None:
        """Wait for the acknowledgement of what was told."""
        if self._loose:
            await asyncio.wait(set(self._loose), timeout=timeout)

    async def _stands(self, event: Event, event_id: str) -> bool:
        try:
            acknowledged = asyncio.wrap_future(self._log.append(event, id=event_id))
            await self._patiently(acknowledged)
        except LogUnavailable as error:
            self._away(str(error))
            return False
        if self.away:
            log_.warning("the event log acknowledges again")
        self._here.set()
        return True

    async def _patiently(self, acknowledged: asyncio.Future[Place]) -> None:
        done, _ = await asyncio.wait({acknowledged}, timeout=PATIENCE_S)
        if not done:
            self._away(f"no acknowledgement for {PATIENCE_S:.0f} s")
        await acknowledged

    def _away(self, why: str) -> None:
        if not self.away:
            log_.warning("the event log is away, calls wait: %s", why)
        self._here.clear()

    def _told(self, event: Event, done: asyncio.Future[Place]) -> None:
        self._loose.discard(done)
        if not done.cancelled() and (error := done.exception()) is not None:
            self._lost(event, error)

    def _lost(self, event: Event, error: BaseException) -> None:
        log_.warning("%s of %s did not reach the log: %s", event.TYPE, getattr(event, "execution", "?"), error)

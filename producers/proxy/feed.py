"""The feed: what others put on the log, brought to the proxy's event loop.

reads     cells, commands, executions
promises  nothing is served before everything that stood on the log at the start was taken in; an event that cannot be read on the
          commands stops the proxy, with its place
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from typing import Any

from gyre_engine.events import Event
from gyre_engine.events.executions import Discarded, Dispatched, Finished
from gyre_engine.log.port import Follower, Log
from producers.proxy.service import Service

TOPICS = ("cells", "commands", "executions")
POLL_S = 0.2


class Feed:
    """A thread that follows the topics. `broken` resolves with the error that ended it."""

    def __init__(self, log: Log, service: Service) -> None:
        self._log = log
        self._service = service
        self._loop = asyncio.get_running_loop()
        self._stop = threading.Event()
        self._caught_up = asyncio.Event()
        self.broken: asyncio.Future[None] = self._loop.create_future()
        self._thread = threading.Thread(target=self._run, name="feed", daemon=True)

    async def start(self, timeout: float = 60.0) -> None:
        """Follow from the beginning; returns when the past was taken in. Raises what ended the thread, or TimeoutError."""
        self._thread.start()
        caught_up = asyncio.ensure_future(self._caught_up.wait())
        waited: set[asyncio.Future[Any]] = {caught_up, self.broken}
        done, _ = await asyncio.wait(waited, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        caught_up.cancel()
        if self.broken.done():
            self.broken.result()
        if not done:
            raise TimeoutError(f"the topics {', '.join(TOPICS)} were not read to their ends within {timeout:.0f} s")

    async def stop(self) -> None:
        """End the thread."""
        self._stop.set()
        await asyncio.to_thread(self._thread.join)

    def _run(self) -> None:
        try:
            follower = self._log.follow(TOPICS)
            try:
                self._follow(follower)
            finally:
                follower.close()
        except Exception as error:
            self._loop.call_soon_threadsafe(self._break, error)

    def _follow(self, follower: Follower) -> None:
        behind = True
        while not self._stop.is_set():
            events = [record.event for record in follower.poll(0.0 if behind and follower.at_end() else POLL_S)]
            if events:
                self._loop.call_soon_threadsafe(self._take, events)
            if behind and follower.at_end():
                behind = False
                self._loop.call_soon_threadsafe(self._caught_up.set)

    def _take(self, events: Sequence[Event]) -> None:
        self._service.desk.router.apply(events)
        for event in events:
            match event:
                case Dispatched():
                    self._service.dispatched(event.execution)
                case Finished() | Discarded():
                    self._service.retire(event.execution)
                case _:
                    pass

    def _break(self, error: Exception) -> None:
        if not self.broken.done():
            self.broken.set_exception(error)

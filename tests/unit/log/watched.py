"""A log in memory that knows which micro-steps it handed out, and how many of them were not let go at once."""

from __future__ import annotations

import weakref
from collections.abc import Iterator

from gyre_engine.events import Recorded
from gyre_engine.events.training import MicroStep
from gyre_engine.log.memory import MemoryLog, MemoryStore
from gyre_engine.log.port import Offsets


class WatchedLog(MemoryLog):
    """`handed`: offsets of the micro-steps in the order in which they were read; `most`: held at once, with the one just read."""

    def __init__(self, store: MemoryStore, run: str) -> None:
        super().__init__(store, run)
        self.handed: list[int] = []
        self.most = 0
        self._out: list[weakref.ref[object]] = []

    def read(self, topic: str, *, start: Offsets | None = None, end: Offsets | None = None) -> Iterator[Recorded]:
        for record in super().read(topic, start=start, end=end):
            if isinstance(record.event, MicroStep):
                self.handed.append(record.offset)
                # A pack takes the event's own arrays, so this one lives as long as either.
                self._out = [ref for ref in self._out if ref() is not None] + [weakref.ref(record.event.ids)]
                self.most = max(self.most, len(self._out))
            yield record

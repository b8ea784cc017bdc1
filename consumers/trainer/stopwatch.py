"""Where a trainer's time goes: seconds by kind of work, by the process's own monotonic clock. They are told, never decided by."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager


class Stopwatch:
    """Runs from when it is made."""

    def __init__(self) -> None:
        self._began = self._passed = time.monotonic()
        self._seconds: dict[str, float] = {}

    @contextmanager
    def during(self, work: str) -> Iterator[None]:
        """The time of the block counts as `work`."""
        began = time.monotonic()
        try:
            yield
        finally:
            self._seconds[work] = self.spent(work) + time.monotonic() - began

    def passed(self, wait: str) -> None:
        """A wait is over; the first time counts, from when the wait before it was."""
        if wait not in self._seconds:
            now = time.monotonic()
            self._seconds[wait], self._passed = now - self._passed, now

    def spent(self, *works: str) -> float:
        """Seconds that went into these so far."""
        return sum(self._seconds.get(work, 0.0) for work in works)

    @property
    def elapsed(self) -> float:
        """Seconds since it was made."""
        return time.monotonic() - self._began

"""Ends the process where events stand on the log and nothing moves: a hung stream looks healthy to everybody else."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from gyre_engine.log.kafka import KafkaLog
from streams.driver import Driver, Stop


class Progress:
    """Whether a lag stands. `look` is given positions and ends at a moment in seconds."""

    def __init__(self, limit_s: float) -> None:
        self.limit_s = limit_s
        self._applied = -1
        self._since = 0.0

    def look(self, applied: int, ends: int, now: float) -> float | None:
        """Seconds for which a lag has stood without progress, where that is beyond the limit; else None."""
        if applied != self._applied or applied >= ends:
            self._applied, self._since = applied, now
            return None
        stood = now - self._since
        return stood if stood > self.limit_s else None


async def watch(to: KafkaLog, drivers: Sequence[Driver], limit_s: float, stop: Stop) -> None:
    """Look at every driver several times within the limit."""
    progress = [Progress(limit_s) for _ in drivers]
    while True:
        await asyncio.sleep(limit_s / 4)
        for driver, seen in zip(drivers, progress, strict=True):
            ends = await asyncio.to_thread(to.ends, driver.derivation.sources)
            stood = seen.look(sum(driver.applied.values()), sum(ends.values()), time.monotonic())
            if stood is not None:
                lag = {place: end - driver.applied.get(place, 0) for place, end in ends.items()}
                behind = ", ".join(f"{topic}/{n}: {count}" for (topic, n), count in sorted(lag.items()) if count > 0)
                stop(f"{driver.derivation.name} has not moved for {stood:.0f} s while events stand ({behind})")

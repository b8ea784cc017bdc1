"""Ends the process where events stand on the log and nothing moves: a hung stream looks healthy to everybody else."""

from __future__ import annotations

import asyncio
import time
import traceback
from collections.abc import Callable, Mapping, Sequence

from gyre_engine.log.kafka import KafkaLog
from gyre_engine.log.port import LogUnavailable
from streams.derivation import Position
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


async def watch(
    to: KafkaLog, drivers: Sequence[Driver], assigned: Callable[[], set[Position]], limit_s: float, stop: Stop
) -> None:
    """Look at every driver several times within the limit. A log that does not say where it ends for so long ends the process, too."""
    progress = [Progress(limit_s) for _ in drivers]
    answered = time.monotonic()
    while True:
        await asyncio.sleep(limit_s / 4)
        try:
            for driver, seen in zip(drivers, progress, strict=True):
                ends = await asyncio.to_thread(to.ends, driver.derivation.sources)
                _look(driver, seen, {place: end for place, end in ends.items() if place in assigned()}, stop)
            answered = time.monotonic()
        except LogUnavailable as error:
            if time.monotonic() - answered > limit_s:
                stop(str(error))
        except Exception:
            stop(f"the watchdog cannot go on:\n{traceback.format_exc()}")


def _look(driver: Driver, seen: Progress, ends: Mapping[Position, int], stop: Stop) -> None:
    lag = {place: end - driver.applied.get(place, 0) for place, end in sorted(ends.items())}
    total = sum(ends.values())
    stood = seen.look(total - sum(lag.values()), total, time.monotonic())
    if stood is not None:
        behind = ", ".join(f"{topic}/{partition}: {count}" for (topic, partition), count in lag.items() if count > 0)
        stop(f"{driver.derivation.name} has not moved for {stood:.0f} s while events stand ({behind})")

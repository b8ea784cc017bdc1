"""Two clocks (learning.md, 3): a harness's limit counts served time, wall clock less what the proxy held it up."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from producers.runner.endings import Stopped
from producers.runner.place import Process

_ASK_AGAIN_S = 1.0
"""Pause where the proxy does not say: while it is away the agent is held up, so nothing is held against it."""
_SHORTEST_S = 0.05


async def watch(
    running: Process,
    *,
    served_s: float,
    overall_s: float,
    held: Callable[[], Awaitable[float | None]],
    cancelled: asyncio.Event,
) -> Stopped:
    """Wait until the process ends, has been served `served_s`, has run `overall_s`, or is cancelled; whoever calls kills it.

    `held`: seconds that the proxy has held it up so far, None where it does not answer.
    """
    held_s = 0.0
    while True:
        left = max(min(served_s + held_s, overall_s) - running.elapsed_s, _SHORTEST_S)
        if (stopped := await _wait(running, left, cancelled)) is not None:
            return stopped
        if running.elapsed_s >= overall_s:
            return Stopped.OVERALL_TIME
        now = await held()
        if now is None:
            if (stopped := await _wait(running, _ASK_AGAIN_S, cancelled)) is not None:
                return stopped
        elif running.elapsed_s - now >= served_s:
            return Stopped.SERVED_TIME
        else:
            held_s = now


async def _wait(running: Process, seconds: float, cancelled: asyncio.Event) -> Stopped | None:
    """How it stopped within `seconds`, or None."""
    ended = asyncio.ensure_future(running.wait(seconds))
    called_off = asyncio.ensure_future(cancelled.wait())
    try:
        await asyncio.wait((ended, called_off), return_when=asyncio.FIRST_COMPLETED)
        if ended.done() and ended.result():
            return Stopped.ITSELF
        return Stopped.CANCELLED if called_off.done() else None
    finally:
        for task in (ended, called_off):
            task.cancel()

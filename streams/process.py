"""The streams process: one Faust worker with the derivations of one run, until SIGTERM or SIGINT.

reads     executions, model-calls, scores, cells, commands, trees, trajectories, training
writes    trees, trajectories, water-level, dead-letters
promises  every event is applied once and its outputs stand on the log before its position is committed, whoever kills the
          process; it ends with status 1 and a message where state is broken, the log stays away, or nothing moves
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Sequence

from gyre_engine.log.kafka import KafkaLog
from gyre_engine.log.port import LogUnavailable
from streams.app import assigned_to, build_app
from streams.derivation import Derivation
from streams.driver import Driver, Stop
from streams.registry import DERIVATIONS
from streams.settings import StreamsSettings
from streams.watchdog import watch

log = logging.getLogger(__name__)


def run(settings: StreamsSettings) -> None:
    """Serve until SIGTERM or SIGINT. The topics of the run must exist."""
    # Where the log is away, KafkaLog says it once; aiokafka would repeat it several times a second.
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)
    to = KafkaLog(settings.kafka, settings.run)
    try:
        asyncio.run(serve(settings, to, derivations(settings), end_process))
    except LogUnavailable as error:
        end_process(str(error))
    finally:
        to.close()


def derivations(settings: StreamsSettings) -> list[Derivation]:
    """The derivations that the settings name."""
    return [DERIVATIONS[name](settings.admission) for name in settings.derivations]


async def serve(settings: StreamsSettings, to: KafkaLog, chosen: Sequence[Derivation], stop: Stop) -> None:
    """Rebuild, start the worker, wait for a signal, stop it with everything acknowledged."""
    over = _on_signals()
    drivers = [Driver(to, derivation, settings.group, stop) for derivation in chosen]
    for driver in drivers:
        driver.rebuild()
    app = build_app(settings, drivers, stop)
    app.finalize()
    await app.start()
    log.info("streams of %s: %s", settings.run, ", ".join(settings.derivations))
    guard = asyncio.create_task(watch(to, drivers, lambda: assigned_to(app, settings), settings.stall_s, stop))
    if await app.wait_for_stopped(asyncio.ensure_future(over.wait())):
        stop(f"the Faust worker {settings.app_id} ended by itself: {app.crash_reason!r}")
    guard.cancel()
    for driver in drivers:
        await driver.drain()
    await app.stop()


def _on_signals() -> asyncio.Event:
    over = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, over.set)
    return over


def end_process(message: str) -> None:
    """Say why and end at once: whatever is not acknowledged is delivered again at the next start."""
    print(f"gyre: {message}", file=sys.stderr, flush=True)
    os._exit(1)

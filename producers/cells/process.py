"""The cell agent's process (`agent` says what it reads, writes and promises)."""

from __future__ import annotations

import asyncio
import signal

from gyre_engine.log import Log
from gyre_engine.sampling.sglang import SGLangEngine
from gyre_engine.transfer.kinds import open_transfer
from producers.cells.agent import CellAgent
from producers.cells.settings import AgentSettings


def run(settings: AgentSettings, log: Log) -> bool:
    """Obey until SIGTERM or SIGINT, or until the cell has left the run; whether it has."""
    return asyncio.run(_run(settings, log))


async def _run(settings: AgentSettings, log: Log) -> bool:
    ending = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ending.set)
    transfer = open_transfer(settings.transfer, settings.transfer_host, secret=settings.secret or None)
    try:
        engine = SGLangEngine(settings.engine_url)
        return await CellAgent(settings, log, engine, transfer, engine).run(ending)
    finally:
        transfer.close()

"""The runner's process: `run` blocks until the run is over or SIGTERM comes, and leaves no sandbox and no workspace behind.

reads     executions, training, scores, trajectories
writes    executions, tool-events, training
promises  one runner at a time on a workspace folder; refuses to run agents without a sandbox unless told to
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from gyre_engine.log.port import Log
from gyre_engine.sandbox import Isolation, sandbox_available
from gyre_engine.sandbox.bridge import open_bridge
from gyre_engine.tasks import load_catalog
from gyre_engine.work_product import remove_tree
from producers.runner.execution import Outside
from producers.runner.harnesses import find_harness
from producers.runner.proxy_client import ProxyClient
from producers.runner.runner import Runner
from producers.runner.settings import RunnerSettings


class RunnerError(RuntimeError):
    """The runner cannot start; the text says why and the remedy."""


def run(settings: RunnerSettings, log: Log) -> int:
    """Exit code 0 when the run is over or when it was asked to stop."""
    with sole_owner(settings.workspaces):
        asyncio.run(_main(settings, log))
    return 0


@contextmanager
def sole_owner(folder: Path) -> Iterator[None]:
    """Hold the workspace folder and empty it of what a dead runner left. Raises RunnerError where another one lives."""
    folder.mkdir(parents=True, exist_ok=True)
    lock = os.open(folder / ".lock", os.O_CREAT | os.O_RDWR, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        raise RunnerError(f"another runner works in {folder}: stop it first, or give this one a folder of its own") from None
    try:
        for entry in folder.iterdir():
            if entry.is_dir():
                remove_tree(entry)
        yield
    finally:
        os.close(lock)


async def _main(settings: RunnerSettings, log: Log) -> None:
    isolation = sandbox_available() if settings.sandboxed else Isolation.NONE
    catalog, harness = load_catalog(settings.sources), find_harness(settings.harness)
    proxy = ProxyClient(settings.proxy_url, settings.secret, settings.proxy_patience_s)
    with tempfile.TemporaryDirectory(prefix="gyre-runner-") as folder:  # short: a socket's path has 107 bytes at most
        where = urlsplit(settings.proxy_url)
        socket = settings.proxy_socket or f"{folder}/proxy.sock"
        bridge = None if settings.proxy_socket else await open_bridge(Path(socket), where.hostname or "", where.port or 80)
        runner = Runner(log, catalog, Outside(settings, isolation, harness, proxy, socket))
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, runner.stop)
        try:
            await runner.run()
        finally:
            await proxy.aclose()
            if bridge is not None:
                await bridge.close()

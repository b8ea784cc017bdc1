"""The runner's process: `run` blocks until the run is over or SIGTERM comes, and leaves no sandbox and no workspace behind.

reads     executions, training, scores, trajectories
writes    executions, tool-events, training
promises  one runner at a time on a workspace folder; refuses to run agents without a sandbox unless told to
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
import signal
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from gyre_engine.harbor import HarborSettings, stop_leftovers
from gyre_engine.log.port import Log
from gyre_engine.sandbox import Isolation, sandbox_available
from gyre_engine.sandbox.bridge import open_bridge
from gyre_engine.tasks import SPLITS, Catalog, load_catalog
from gyre_engine.work_product import remove_tree
from producers.runner.execution import Outside
from producers.runner.harbor import HarborAgent, find_agent
from producers.runner.harnesses import Harness, HarnessSettings, find_harness
from producers.runner.proxy_client import ProxyClient
from producers.runner.runner import Runner
from producers.runner.settings import RunnerSettings

logger = logging.getLogger("gyre.runner")


class RunnerError(RuntimeError):
    """The runner cannot start; the text says why and the remedy."""


def run(settings: RunnerSettings, log: Log) -> int:
    """Exit code 0 when the run is over or when it was asked to stop."""
    harness = harness_of(settings.harness, settings.harbor, settings.public_url)
    with sole_owner(settings.workspaces):
        asyncio.run(_main(settings, log, harness))
    return 0


def harness_of(settings: HarnessSettings, harbor: HarborSettings | None, public_url: str) -> Harness | HarborAgent:
    """What runs the executions. Raises HarnessError."""
    return find_harness(settings) if harbor is None else find_agent(settings, harbor, public_url)


@contextmanager
def sole_owner(folder: Path) -> Iterator[None]:
    """Hold the workspace folder and empty it of what a dead runner left, its environments of Harbor's first.

    Raises RunnerError where another one lives.
    """
    folder.mkdir(parents=True, exist_ok=True)
    lock = os.open(folder / ".lock", os.O_CREAT | os.O_RDWR, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        raise RunnerError(f"another runner works in {folder}: stop it first, or give this one a folder of its own") from None
    try:
        stop_leftovers(folder)
        for entry in folder.iterdir():
            if entry.is_dir():
                remove_tree(entry)
        yield
    finally:
        os.close(lock)


async def _main(settings: RunnerSettings, log: Log, harness: Harness | HarborAgent) -> None:
    isolation = sandbox_available() if settings.sandboxed and settings.harbor is None else Isolation.NONE
    catalog = load_catalog(settings.sources)
    if settings.harbor is None:
        _tell_ignored(catalog)
    proxy = ProxyClient(settings.proxy_url, settings.secret, settings.proxy_patience_s)
    with tempfile.TemporaryDirectory(prefix="gyre-runner-") as folder:  # short: a socket's path has 107 bytes at most
        where = urlsplit(settings.proxy_url)
        socket = settings.proxy_socket or f"{folder}/proxy.sock"
        bridge = None
        if not settings.proxy_socket:
            bridge = await open_bridge(Path(socket), where.hostname or "", where.port or 80, settings.proxy_patience_s)
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


def _tell_ignored(catalog: Catalog) -> None:
    """What tasks ask for that has no effect here, once for each reason."""
    tasks = {task.folder: task for split in SPLITS for _, task in catalog.of_split(split)}.values()
    for text, count in sorted(Counter(text for task in tasks for text in task.ignored).items()):
        logger.warning("of %d of %d tasks this has no effect in the sandbox: %s", count, len(tasks), text)

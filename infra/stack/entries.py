"""Where each process of a run begins. A process is told the stack's folder and, for cells, its cell's name; it reads the rest."""

from __future__ import annotations

import logging
import os
import signal
import sys
import uuid
from pathlib import Path
from urllib.parse import urlsplit

from gyre_engine.log.kafka import KafkaLog
from infra.stack import wiring
from infra.stack.health import reporter
from infra.stack.launch import Launch
from infra.stack.layout import StackFolder

TERMINATED = 128 + signal.SIGTERM


def proxy(folder: str) -> None:
    from producers.proxy.process import run

    launch, stack = _begin(folder)
    run(wiring.proxy(launch, stack), _log(launch, stack))


def runner(folder: str) -> None:
    from producers.runner.process import run

    launch, stack = _begin(folder)
    sys.exit(run(wiring.runner(launch, stack), _log(launch, stack)))


def streams(folder: str) -> None:
    from streams.process import run

    launch, stack = _begin(folder)
    run(wiring.streams(launch, stack))


def scheduler(folder: str) -> None:
    from consumers.scheduler.process import run

    launch, stack = _begin(folder)
    run(wiring.scheduler(launch, _life()), _log(launch, stack), report=reporter(stack.health, "scheduler"))


def scoring(folder: str) -> None:
    from consumers.scoring.process import run

    launch, stack = _begin(folder)
    sys.exit(run(wiring.scoring(launch, stack), _log(launch, stack), reporter(stack.health, "scoring")))


def analytics(folder: str) -> None:
    from consumers.analytics.process import run

    launch, stack = _begin(folder)
    run(wiring.analytics(launch, stack), _log(launch, stack), report=reporter(stack.health, "analytics"))


def reporting(folder: str) -> None:
    from consumers.reporting.process import run

    launch, stack = _begin(folder)
    run(wiring.reporting(launch, stack), _log(launch, stack), report=reporter(stack.health, "reporting"))


def cell_agent(folder: str, cell: str) -> None:
    """Ends with status 0 only once the cell has left the run: then it is not started again."""
    from producers.cells.process import run

    launch, stack = _begin(folder)
    left = run(wiring.agent(launch, stack, cell, _life()), _log(launch, stack))
    sys.exit(0 if left else TERMINATED)


def engine(folder: str, cell: str) -> None:
    from producers.cells.engine_server import run_engine_server, run_scripted_server

    launch, stack = _begin(folder)
    config, url = launch.settings, urlsplit(launch.cell(cell).engine_url)
    if config.cells.engine == "scripted":
        return run_scripted_server(
            launch.model_path, config.cells.script, str(launch.model_version), host=url.hostname or "127.0.0.1", port=url.port or 0,
            kv_capacity=config.cells.kv_tokens, max_context=config.model.context,
        )  # fmt: skip
    run_engine_server(
        launch.model_path, str(launch.model_version), host=url.hostname or "127.0.0.1", port=url.port or 0,
        kv_capacity=config.cells.kv_tokens, max_batch=config.cells.capacity, max_context=config.model.context, paused=True,
        kv_secret=stack.cell_key(), transfer=config.transfer.kind, keep_kv=wiring.keeps_kv(config),
    )  # fmt: skip


def trainer(folder: str, cell: str) -> None:
    from consumers.trainer.process import replica_of, run

    launch, stack = _begin(folder)
    settings = wiring.trainer(launch, stack, cell, _life())
    replica = replica_of(settings)
    run(settings, _log(launch, stack), replica, report=reporter(stack.health, f"{cell}-trainer"))


def _begin(folder: str) -> tuple[Launch, StackFolder]:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    logging.getLogger("httpx").setLevel(logging.WARNING)
    stack = StackFolder(Path(folder))
    return Launch.load(stack), stack


def _log(launch: Launch, stack: StackFolder) -> KafkaLog:
    return KafkaLog(launch.kafka(stack), launch.run)


def _life() -> str:
    """A name for this life of a process."""
    return f"{os.uname().nodename}-{os.getpid()}-{uuid.uuid4().hex[:8]}"

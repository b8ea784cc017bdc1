"""Where each process of a run begins. A process is told the stack's folder and, for cells, its position; it reads the rest."""

from __future__ import annotations

import logging
import os
import sys
import uuid
from pathlib import Path
from urllib.parse import urlsplit

from gyre_engine.log.kafka import KafkaLog
from infra.stack import wiring
from infra.stack.health import reporter
from infra.stack.launch import Launch
from infra.stack.layout import StackFolder


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


def cell_agent(folder: str, position: int) -> None:
    from producers.cells.process import run

    launch, stack = _begin(folder)
    run(wiring.agent(launch, stack, position, _life()), _log(launch, stack))


def engine(folder: str, position: int) -> None:
    from producers.cells.engine_server import run_engine_server, run_scripted_server

    launch, stack = _begin(folder)
    config, url = launch.settings, urlsplit(wiring.engine_url(launch, position))
    if config.cells.engine == "scripted":
        return run_scripted_server(
            config.model.path, config.cells.script, "0", host=url.hostname or "127.0.0.1", port=url.port or 0,
            kv_capacity=config.cells.kv_tokens, max_context=config.model.context,
        )  # fmt: skip
    run_engine_server(
        config.model.path, "0", host=url.hostname or "127.0.0.1", port=url.port or 0, kv_capacity=config.cells.kv_tokens,
        max_batch=config.cells.capacity, max_context=config.model.context, paused=True, kv_secret=stack.secret(),
        transfer=config.transfer.kind,
    )  # fmt: skip


def trainer(folder: str, position: int) -> None:
    from consumers.trainer.process import run

    launch, stack = _begin(folder)
    report = reporter(stack.health, f"cell-{position}-trainer")
    run(wiring.trainer(launch, stack, position, _life()), _log(launch, stack), report=report)


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

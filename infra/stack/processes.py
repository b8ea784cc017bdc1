"""The processes of a run, as the supervisor is told of them."""

from __future__ import annotations

import os
import urllib.error
import urllib.request
from collections.abc import Callable
from urllib.parse import urlsplit

from gyre_engine.config import Config
from gyre_engine.sandbox import find_bwrap
from infra.sglang.launch import Launch as SGLangLaunch
from infra.sglang.launch import sglang_on_cpu
from infra.stack.launch import Launch
from infra.stack.layout import StackFolder
from infra.stack.wiring import cell_name, engine_url, positions
from infra.supervisor.spec import ProcessSpec, RestartPolicy

ENTRIES = "infra.stack.entries"
FIRST, ACTING, DERIVING, SHOWING = 0, 1, 2, 3
"""Stages of a stop: who starts work ends first; the broker, last of all, is not among these."""
ENGINES, TRAINERS = "preloader-engines", "preloader-trainers"
PRELOADERS = {
    ENGINES: ("gyre_engine.sampling.native", "producers.cells.engine_server"),
    TRAINERS: ("gyre_engine.training.megatron", "gyre_engine.training.optimizer"),
}
"""Engines need torch alone and are up in half of the time that Megatron takes: agents begin while trainers still load."""
PATIENT = RestartPolicy(limit=8, window_seconds=120.0)


def run_processes(launch: Launch, folder: StackFolder) -> tuple[ProcessSpec, ...]:
    """All processes of a run but the broker."""
    config = launch.settings
    root = str(folder.root)
    specs = [
        _light("streams", root, DERIVING),
        _light("proxy", root, ACTING, ready=_answers(f"{launch.proxy_url}/healthz")),
        _light("scheduler", root, ACTING),
        _light("scoring", root, ACTING),
        _light("runner", root, FIRST, ends=True),
    ]
    if launch.clickhouse_url:
        specs.insert(0, _light("analytics", root, SHOWING))
    for position in positions(config):
        specs += cell_processes(launch, folder, position)
    return tuple(specs)


def cell_processes(launch: Launch, folder: StackFolder, position: int) -> list[ProcessSpec]:
    """A cell's engine, trainer and agent; the standalone pool has no trainers."""
    config, root, name = launch.settings, str(folder.root), cell_name(position)
    args = {"folder": root, "position": position}
    trainer = ProcessSpec(
        f"{name}-trainer", target=f"{ENTRIES}:trainer", args=args, heavy=True, parent=TRAINERS, stage=ACTING, restart=PATIENT
    )
    return [
        _engine(config, launch, name, position, args),
        *([trainer] if position >= 0 else []),
        ProcessSpec(f"{name}-agent", target=f"{ENTRIES}:cell_agent", args=args, stage=ACTING, restart=PATIENT),
    ]


def _engine(config: Config, launch: Launch, name: str, position: int, args: dict[str, object]) -> ProcessSpec:
    if config.cells.engine == "sglang":
        command = _sglang(config, engine_url(launch, position))
        # SGLang starts processes of its own: in a namespace of pids they end with it, whatever ends it.
        apart = (find_bwrap(), "--dev-bind", "/", "/", "--proc", "/proc", "--unshare-pid", "--die-with-parent")
        return ProcessSpec(f"{name}-engine", argv=(*apart, *command.argv), env=command.env, stage=ACTING, restart=PATIENT)
    target = f"{ENTRIES}:engine"
    if config.cells.engine == "scripted":
        return ProcessSpec(f"{name}-engine", target=target, args=args, stage=ACTING, restart=PATIENT)
    return ProcessSpec(f"{name}-engine", target=target, args=args, heavy=True, parent=ENGINES, stage=ACTING, restart=PATIENT)


def _sglang(config: Config, url: str) -> SGLangLaunch:
    at = urlsplit(url)
    return sglang_on_cpu(
        config.model.path, "0", host=at.hostname or "127.0.0.1", port=at.port or 0, environment=os.environ,
        kv_capacity=config.cells.kv_tokens, max_batch=config.cells.capacity,
    )  # fmt: skip


def _light(name: str, root: str, stage: int, *, ends: bool = False, ready: Callable[[], bool] | None = None) -> ProcessSpec:
    return ProcessSpec(
        name, target=f"{ENTRIES}:{name}", args={"folder": root}, stage=stage, ends=ends, ready=ready, restart=PATIENT
    )


def _answers(url: str) -> Callable[[], bool]:
    def ready() -> bool:
        try:
            with urllib.request.urlopen(url, timeout=1.0) as answer:  # noqa: S310
                return bool(answer.status == 200)
        except (urllib.error.URLError, OSError):
            return False

    return ready

"""The processes of a run, as the supervisor is told of them."""

from __future__ import annotations

import urllib.error
import urllib.request
from collections.abc import Callable

from infra.stack.cells import ACTING, ENTRIES, PATIENT, cell_processes
from infra.stack.launch import Launch
from infra.stack.layout import StackFolder
from infra.supervisor.spec import ProcessSpec

FIRST, DERIVING, SHOWING = 0, 2, 3
"""Stages of a stop beside that of the cells: who starts work ends first; the broker, last of all, is not among these."""


def run_processes(launch: Launch, folder: StackFolder) -> tuple[ProcessSpec, ...]:
    """All processes of a run but the broker."""
    root = str(folder.root)
    specs = [
        _light("streams", root, DERIVING),
        _light("proxy", root, ACTING, ready=_answers(f"{launch.proxy_url}/healthz")),
        _light("scheduler", root, ACTING),
        _light("scoring", root, ACTING),
        _light("runner", root, FIRST, ends=True),
    ]
    if launch.metrics_url:
        specs.append(_light("reporting", root, DERIVING))
    if launch.clickhouse_url:
        specs.insert(0, _light("analytics", root, SHOWING))
    for place in launch.cells:
        specs += cell_processes(launch, folder, place)
    return tuple(specs)


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

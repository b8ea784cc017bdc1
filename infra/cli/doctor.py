"""`gyre doctor`: what is missing on this machine, and the remedy."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import psutil

from gyre_engine.sandbox import SandboxUnavailable, find_bwrap, sandbox_available
from gyre_engine.tasks import DataError, TaskError, read_task, require_local, task_folders
from infra.broker.errors import BrokerError
from infra.broker.java import find_java
from infra.sglang.launch import PYTHON as SGLANG

LEAST_MEMORY = 8 << 30
LEAST_DISK = 4 << 30


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """One thing looked at. `wrong`: a run would fail; otherwise the text is a remark."""

    what: str
    wrong: bool
    text: str


def examine(tasks: Path | None = None) -> list[Diagnosis]:
    """Everything that can be said without starting anything."""
    checks: tuple[Callable[[], Diagnosis], ...] = (_python, _java, _sandbox, _memory, _disk, _cores, _sglang, _harbor)
    found = [check() for check in checks]
    return [*found, *(_tasks(tasks) if tasks else ())]


def _python() -> Diagnosis:
    version = ".".join(map(str, sys.version_info[:3]))
    return Diagnosis("python", sys.version_info < (3, 11), f"{version} (3.11 or newer is needed)")


def _java() -> Diagnosis:
    try:
        return Diagnosis("java", False, str(find_java()))
    except BrokerError as error:
        return Diagnosis("java", True, str(error))


def _sandbox() -> Diagnosis:
    try:
        kind = sandbox_available()
    except SandboxUnavailable as error:
        return Diagnosis("sandbox", True, str(error))
    return Diagnosis("sandbox", False, f"{find_bwrap()} ({kind.value})")


def _memory() -> Diagnosis:
    free = psutil.virtual_memory().available
    return Diagnosis("memory", free < LEAST_MEMORY, f"{free / 2**30:.1f} GiB available; the quickstart takes up to 8")


def _disk() -> Diagnosis:
    free = shutil.disk_usage(Path.cwd()).free
    return Diagnosis("disk", free < LEAST_DISK, f"{free / 2**30:.1f} GiB free in {Path.cwd()}; 4 are needed")


def _cores() -> Diagnosis:
    count = len(os.sched_getaffinity(0))
    return Diagnosis("cores", False, f"{count}" + ("" if count > 1 else ": one core works, slowly"))


def _sglang() -> Diagnosis:
    if SGLANG.exists():
        return Diagnosis("sglang", False, str(SGLANG))
    return Diagnosis("sglang", False, 'not installed; only cells.engine = "sglang" needs it: `make install-sglang`')


def _harbor() -> Diagnosis:
    try:
        return Diagnosis("harbor", False, metadata.version("harbor"))
    except metadata.PackageNotFoundError:
        remedy = "`uv sync --python 3.12 --extra harbor`"
        return Diagnosis("harbor", False, f"not installed; only Harbor's agents and environments need it: {remedy}")


def _tasks(folder: Path) -> Iterator[Diagnosis]:
    """Whether each task directory can be run on this machine."""
    try:
        found = task_folders(folder).values()
    except DataError as error:
        yield Diagnosis("tasks", True, str(error))
        return
    good = 0
    for path in found:
        try:
            task = read_task(path)
            require_local(task)
            good += 1
        except TaskError as error:
            yield Diagnosis("tasks", True, str(error))
        else:
            yield from [Diagnosis("tasks", False, f"{path}: no effect here: {'; '.join(task.ignored)}")] if task.ignored else []
    yield Diagnosis("tasks", good == 0, f"{good} tasks in {folder} can be run here")

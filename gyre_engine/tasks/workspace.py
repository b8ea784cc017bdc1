"""A fresh workspace of a task: its COPY lines carried out under a folder whose children are mounted into the sandbox."""

from __future__ import annotations

import shutil
from pathlib import Path

from gyre_engine.sandbox.policy import Mount
from gyre_engine.tasks.task import Task, TaskError, require_local


def prepare(task: Task, root: Path) -> None:
    """Fill the empty folder `root`, which stands for `/`. Raises TaskError (the task's fault) or OSError (the machine's)."""
    require_local(task)
    for folder in (task.image.workdir, *task.image.folders):
        _inside(root, folder).mkdir(parents=True, exist_ok=True)
    environment = (task.folder / "environment").resolve()
    for copy in task.image.copies:
        for source in copy.sources:
            _copy(task, environment, source, _inside(root, copy.target), copy.into)


def mounts(task: Task, root: Path) -> tuple[Mount, ...]:
    """The workspace's folders where the task expects them, writable."""
    return tuple(Mount(root / name, f"/{name}", writable=True) for name in task.slices)


def _inside(root: Path, path: str) -> Path:
    return root / path.lstrip("/")


def _copy(task: Task, environment: Path, source: str, target: Path, into: bool) -> None:
    if any(c in source for c in "*?["):
        for found in sorted(environment.glob(source)):
            _copy(task, environment, str(found.relative_to(environment)), target, True)
        return
    origin = (environment / source).resolve()
    if not origin.is_relative_to(environment) or not origin.exists():
        raise TaskError(f"{task.folder}/environment/Dockerfile copies {source}, which is not in {environment}: add it there")
    if origin.is_dir():
        shutil.copytree(origin, target, symlinks=True, dirs_exist_ok=True)
        return
    target = target / origin.name if into or target.is_dir() else target
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(origin, target)

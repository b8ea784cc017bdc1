"""Environments that outlived who started them (killed, or the machine went down): noted when made, stopped at the next start.

A note is a file in the folder of the execution or evaluation; it goes with the folder.
"""

from __future__ import annotations

import asyncio
import json
import logging
from pathlib import Path
from typing import Any

from gyre_engine.harbor.environment import HarborSettings, overlay, require, trial_environment

logger = logging.getLogger("gyre.harbor")

_NOTE = "environment.json"
_STOP_S = 120.0
_AT_ONCE = 8


def note(folder: Path, session: str, task: Path, settings: HarborSettings) -> None:
    """An environment of this name is about to be made for what runs in `folder`."""
    told = {
        "session": session,
        "task": str(task.resolve()),
        "environment": settings.environment,
        "options": dict(settings.options),
    }
    (folder / _NOTE).write_text(json.dumps(told))


def stop_leftovers(root: Path, folders: str = "*") -> int:
    """Stop what the `folders` of `root` have notes of; returns how many. What cannot be stopped is told and left.

    `folders` says at which depth they lie: what agents write lies deeper, and may be called as a note is.
    """
    notes = sorted(root.glob(f"{folders}/{_NOTE}"))
    return asyncio.run(_stop_all(notes)) if notes else 0


async def _stop_all(notes: list[Path]) -> int:
    slots = asyncio.Semaphore(_AT_ONCE)

    async def one(path: Path) -> bool:
        async with slots:
            return await _stop(path)

    return sum(await asyncio.gather(*map(one, notes)))


async def _stop(path: Path) -> bool:
    try:
        require()
        left = json.loads(path.read_text())
        settings = HarborSettings(left["environment"], left["options"])
        environment = open_environment(settings, Path(left["task"]), left["session"], path.parent / "stopping")
        async with asyncio.timeout(_STOP_S):
            await environment.stop(delete=True)
        path.unlink()
        return True
    except Exception as error:  # an environment is anybody's code, and this one may never have been made
        logger.warning("an environment that a dead process left (%s) could not be stopped: %s", path.parent.name, error)
        return False


def open_environment(settings: HarborSettings, task: Path, session: str, folder: Path, **given: Any) -> Any:
    """An environment for the task, not started. `session` names it to its provider; `given` overrides what the task says."""
    from harbor.environments.factory import EnvironmentFactory
    from harbor.models.task.task import Task
    from harbor.models.trial.paths import TrialPaths

    read, paths = Task(task, disable_verification=True), TrialPaths(folder)
    paths.mkdir()
    asked = {"environment_dir": read.paths.environment_dir, "task_env_config": read.config.environment, **given}
    return EnvironmentFactory.create_environment_from_config(
        trial_environment(settings, overlay(settings, folder)), environment_name=read.short_name, session_id=session,
        trial_paths=paths, **asked,
    )  # fmt: skip

"""Environments that outlived who started them (killed, or the machine went down): noted when made, stopped at the next start.

A note is a file in the folder of the execution or evaluation; it goes with the folder.
"""

from __future__ import annotations

import asyncio
import json
import logging
from pathlib import Path
from typing import Any

from gyre_engine.harbor.environment import HarborSettings, trial_environment

logger = logging.getLogger("gyre.harbor")

_NOTE = "environment.json"
_STOP_S = 120.0


def note(folder: Path, session: str, task: Path) -> None:
    """An environment of this name is about to be made for what runs in `folder`."""
    (folder / _NOTE).write_text(json.dumps({"session": session, "task": str(task.resolve())}))


def stop_leftovers(settings: HarborSettings, root: Path) -> int:
    """Stop what the folders below `root` have notes of; returns how many. What cannot be stopped is told and left."""
    notes = sorted(root.glob(f"*/{_NOTE}"))
    return asyncio.run(_stop_all(settings, notes)) if notes else 0


async def _stop_all(settings: HarborSettings, notes: list[Path]) -> int:
    stopped = 0
    for path in notes:
        try:
            left = json.loads(path.read_text())
            environment = open_environment(settings, Path(left["task"]), left["session"], path.parent / "stopping")
            async with asyncio.timeout(_STOP_S):
                await environment.stop(delete=True)
            stopped += 1
        except Exception as error:  # an environment is anybody's code, and this one may never have been made
            logger.warning("an environment that a dead process left (%s) could not be stopped: %s", path.parent.name, error)
    return stopped


def open_environment(settings: HarborSettings, task: Path, session: str, folder: Path, **given: Any) -> Any:
    """An environment for the task, not started. `session` names it to its provider; `given` overrides what the task says."""
    from harbor.environments.factory import EnvironmentFactory
    from harbor.models.task.task import Task
    from harbor.models.trial.paths import TrialPaths

    read, paths = Task(task, disable_verification=True), TrialPaths(folder)
    paths.mkdir()
    asked = {"environment_dir": read.paths.environment_dir, "task_env_config": read.config.environment, **given}
    return EnvironmentFactory.create_environment_from_config(
        trial_environment(settings), environment_name=read.short_name, session_id=session, trial_paths=paths, **asked
    )

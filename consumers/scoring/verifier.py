"""The default scorer: runs the task's own tests/test.sh on a fresh copy of the work, in a sandbox that the agent never saw.

The tests lie read-only at /tests, the copy where the task's WORKDIR says, /logs/verifier is new and empty. What an agent can
leave to be paid without having done the work is left out of the copy and flagged: reward files, and modules that Python or
pytest load unasked.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from consumers.scoring.copies import flags, is_planted, on_a_copy, own_planted
from consumers.scoring.port import EvaluationBroken, Score, ScoredExecution
from consumers.scoring.reward import read_reward
from gyre_engine.sandbox import Exit, Isolation, Limits, Mount, Sandbox, spawn
from gyre_engine.tasks import Task, filled, mounts, prepare

_SAID = 300


@dataclass(frozen=True, slots=True)
class VerifierSettings:
    """Of [scoring]."""

    isolation: Isolation
    scratch: Path
    weights: Mapping[str, float] = field(default_factory=dict)
    bounds: tuple[float, float] = (0.0, 1.0)
    limits: Limits = field(default_factory=Limits)


class VerifierScorer:
    """Scores by `tests/test.sh`. Work that was never begun scores 0 without a run (learning.md, 4)."""

    name = "verifier"
    version = "1"

    def __init__(self, settings: VerifierSettings) -> None:
        self._settings = settings
        settings.scratch.mkdir(parents=True, exist_ok=True)

    async def score(self, execution: ScoredExecution) -> Score:
        return await on_a_copy(execution, self._settings.scratch, self._verify)

    async def _verify(self, execution: ScoredExecution, task: Task, folder: Path) -> Score:
        noticed = await asyncio.to_thread(self._lay_out, execution, task, folder)
        exit = await self._run(task, folder)
        if not exit.came_up:
            raise EvaluationBroken(f"the verifier's sandbox did not come up: {_said(exit)}")
        if exit.code < 0:
            raise EvaluationBroken(f"the verifier was ended by signal {-exit.code}: {_said(exit)}")
        try:
            score = read_reward(folder / "logs" / "verifier", self._settings.weights, self._settings.bounds)
        except EvaluationBroken as broken:
            raise EvaluationBroken(f"{broken} (exit code {exit.code}): {_said(exit)}") from broken
        return replace(score, flags=noticed)

    def _lay_out(self, execution: ScoredExecution, task: Task, folder: Path) -> tuple[str, ...]:
        """Unpack the work; returns what was noticed."""
        root = folder / "root"
        root.mkdir()
        (folder / "logs" / "verifier").mkdir(parents=True)
        unpacked = execution.unpack(root, self._wanted)
        self._restore(task, root)
        for name in task.slices:
            (root / name).mkdir(exist_ok=True)
        return flags(unpacked, execution.finished.detail, own_planted(task))

    def _wanted(self, name: str) -> bool:
        return name != "logs" and not name.startswith("logs/") and not is_planted(name)

    def _restore(self, task: Task, root: Path) -> None:
        """The task's own conftest.py and the like, as the task has them."""
        if not own_planted(task):
            return
        with tempfile.TemporaryDirectory(dir=self._settings.scratch) as name:
            fresh = Path(name)
            prepare(task, fresh)
            for path in (p for p in fresh.rglob("*") if p.is_file() and is_planted(p.name)):
                target = root / path.relative_to(fresh)
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(path, target)

    async def _run(self, task: Task, folder: Path) -> Exit:
        sandbox = self._sandbox(task, folder)
        try:
            running = spawn(sandbox, self._command(task, sandbox), self._settings.isolation)
        except OSError as error:
            raise EvaluationBroken(f"the verifier could not be started: {error}") from error
        try:
            in_time = await running.wait(task.verifier_timeout_s)
        finally:
            running.kill()
        exit = await running.exit()
        if not in_time:
            raise EvaluationBroken(f"the verifier did not end within {task.verifier_timeout_s:g} s: {_said(exit)}")
        return exit

    def _sandbox(self, task: Task, folder: Path) -> Sandbox:
        places = (
            *mounts(task, folder / "root"),
            Mount(task.tests.resolve(), "/tests"),
            Mount(folder / "logs", "/logs", writable=True),
        )
        env = filled(task, (*task.env, *task.verifier_env))
        return Sandbox(task.image.workdir, places, env, self._settings.limits)

    def _command(self, task: Task, sandbox: Sandbox) -> list[str]:
        """Without a sandbox nothing lies at /tests or /logs: the script is told where, as its two arguments."""
        with open(task.tests / "test.sh", encoding="utf-8", errors="replace") as file:
            shell = "bash" if "bash" in file.readline() else "/bin/sh"
        if self._settings.isolation is not Isolation.NONE:
            return [shell, "/tests/test.sh"]
        work, reward = sandbox.host_path(task.image.workdir), sandbox.host_path("/logs/verifier/reward.txt")
        return [shell, str(sandbox.host_path("/tests/test.sh")), str(work), str(reward)]


def _said(exit: Exit) -> str:
    return exit.output[-_SAID:].decode(errors="replace").strip() or "it printed nothing"

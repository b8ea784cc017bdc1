"""One execution of an agent of Harbor's in the tests' own environment, and its verifier. Skips where Harbor is not installed."""

from __future__ import annotations

import asyncio
import importlib.util
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

if importlib.util.find_spec("harbor") is None:
    pytest.skip("Harbor is not installed: it needs Python 3.12 or newer and `uv sync --extra harbor`", allow_module_level=True)

from consumers.scoring.harbor_verifier import HarborVerifier
from consumers.scoring.port import Score, ScoredExecution, Scorer
from gyre_engine.events import Event
from gyre_engine.events.executions import Discarded, Dispatched, Ending, Finished
from gyre_engine.harbor import HarborSettings
from gyre_engine.log.memory import MemoryLog
from gyre_engine.sandbox import Isolation, SandboxUnavailable, sandbox_available
from gyre_engine.scheduling.classes import ClassPlan
from gyre_engine.tasks import Source, Task, read_task
from gyre_engine.work_product import pack, unpack
from producers.runner.execution import Execution, Outside
from producers.runner.harbor import find_agent
from producers.runner.harnesses import HarnessSettings
from producers.runner.proxy_client import ProxyClient
from producers.runner.settings import RunnerSettings
from tests.integration.runner_fakes import SECRET, write_task

try:
    sandbox_available()
except SandboxUnavailable as missing:
    pytest.skip(f"the environment of these tests runs under bubblewrap: {missing}", allow_module_level=True)

ENVIRONMENT = "tests.integration.harbor_env:BubbleEnvironment"
WORKER = "harbor:tests.integration.harbor_env:Worker"
NAME = "g000000.0.0"
DOCKERFILE = "FROM debian\nWORKDIR /app\nRUN echo made >/opt/tool\nCOPY seed.txt /app/\n"
"""RUN is what the sandbox refuses."""
SOLUTION = "#!/bin/bash\ntest -s /opt/tool && echo 42 >answer.txt\n"


def task(folder: Path, **given: Any) -> Task:
    """The task `one`, whose answer is 42, with a reference solution."""
    path = write_task(folder / "tasks" / "one", **{"dockerfile": DOCKERFILE, **given})
    (path / "solution").mkdir()
    (path / "solution" / "solve.sh").write_text(SOLUTION)
    return read_task(path)


def environment(folder: Path, **options: Any) -> HarborSettings:
    return HarborSettings(ENVIRONMENT, {"folder": str(folder / "bubbles"), **options})


def settings_for(
    folder: Path, url: str, agent: str = WORKER, options: dict[str, Any] | None = None, **changes: Any
) -> RunnerSettings:
    base = RunnerSettings(
        plan=ClassPlan(batch=1, mu=1, phi=0, steps=1), group_size=1, sources=(Source("tasks", folder / "tasks"),),
        harness=HarnessSettings(name=agent, options=options or {}), workspaces=folder / "workspaces", store=f"file://{folder}/store",
        proxy_url=url, public_url=url, secret=SECRET, overall_timeout_s=120.0, harbor=environment(folder),
    )  # fmt: skip
    return replace(base, **changes)


class Run:
    """An execution under way. `events`: what it put on the log."""

    def __init__(self, settings: RunnerSettings, task: Task, name: str = NAME) -> None:
        assert settings.harbor is not None
        self.events: list[Event] = []
        self.cancelled = asyncio.Event()
        self._proxy = ProxyClient(settings.proxy_url, SECRET, 5.0)
        agent = find_agent(settings.harness, settings.harbor, settings.public_url)
        outside = Outside(settings, Isolation.NONE, agent, self._proxy, "")
        self._execution = Execution(name, task, outside, self._append, self.cancelled)

    async def _append(self, event: Event) -> None:
        self.events.append(event)

    async def end(self) -> Finished | Discarded:
        try:
            return await self._execution.outcome()
        finally:
            await self._proxy.aclose()


def left(end: Finished | Discarded, folder: Path) -> dict[str, str]:
    """The files of the work product."""
    assert isinstance(end, Finished), end
    folder.mkdir()
    unpack(Path(end.work_url.removeprefix("file://")).read_bytes(), folder)
    return {str(p.relative_to(folder)): p.read_text() for p in sorted(folder.rglob("*")) if p.is_file() and not p.is_symlink()}


def finished(folder: Path, files: dict[str, str], log: MemoryLog | None = None) -> Finished:
    """An execution of the task `one` whose agent left these files."""
    root = folder / "root"
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    work = pack(root)
    (folder / "work.tar").write_bytes(work.data)
    end = Finished(
        execution=NAME, ending=Ending.COMPLETED, work_url=f"file://{folder}/work.tar", work_hash=work.sha256, did_work=True,
        served_us=1, wall_us=1,
    )  # fmt: skip
    if log is not None:
        log.append_all([dispatched(NAME), end])
    return end


def dispatched(name: str) -> Dispatched:
    group, index, attempt = name.rsplit(".", 2)
    return Dispatched(
        execution=name, group=group, index=int(index), attempt=int(attempt), group_size=1, group_number=0, class_number=0,
        query="one", source="tasks", split="train", harness="harbor:worker", weight_version=0,
    )  # fmt: skip


async def score(end: Finished | Discarded, task: Task, folder: Path, scorer: Scorer | None = None) -> Score:
    """By the verifier, apart."""
    assert isinstance(end, Finished), end
    scorer = scorer or HarborVerifier(environment(folder), folder / "run" / "scratch")
    return await scorer.score(ScoredExecution(dispatched(end.execution), end, task))

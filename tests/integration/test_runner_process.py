"""The runner as a process: kill -9 with live sandboxes, one runner a folder, SIGTERM."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from asyncio.subprocess import Process
from pathlib import Path
from typing import Any

import pytest

from gyre_engine.sandbox import SandboxUnavailable, sandbox_available
from producers.runner.process import RunnerError, sole_owner
from tests.integration.runner_fakes import FakeProxy, write_task

try:
    sandbox_available()
except SandboxUnavailable as missing:
    pytest.skip(str(missing), allow_module_level=True)

CODE = """
import sys
from pathlib import Path
from gyre_engine.log.memory import MemoryLog
from gyre_engine.scheduling.classes import ClassPlan
from gyre_engine.tasks import Source
from producers.runner.harnesses import HarnessSettings
from producers.runner.process import run
from producers.runner.settings import RunnerSettings
folder, url = Path(sys.argv[1]), sys.argv[2]
beat = "while :; do date +%s%N > beat; sleep 0.01; done"
run(RunnerSettings(
    plan=ClassPlan(batch=1, mu=1, phi=0, steps=1), group_size=4, sources=(Source("tasks", folder / "tasks"),),
    harness=HarnessSettings(name="command", command=beat), workspaces=folder / "workspaces",
    store=f"file://{folder}/store", proxy_url=url, secret=b"a secret of the tests"), MemoryLog())
"""


def beats(folder: Path) -> dict[str, str]:
    return {str(path): path.read_text() for path in folder.glob("workspaces/*/root/app/beat")}


async def start(folder: Path, url: str) -> Process:
    """A runner with four live sandboxes."""
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", CODE, str(folder), url)
    async with asyncio.timeout(60):
        while len([b for b in beats(folder).values() if b]) < 4:
            await asyncio.sleep(0.05)
    return process


async def no_beat_moves(folder: Path) -> bool:
    before = beats(folder)
    await asyncio.to_thread(subprocess.run, ["sleep", "0.4"], check=True)
    return beats(folder) == before


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_task(tmp_path / "tasks" / "one")
    return tmp_path


def nothing(execution: str, request: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    return 500, {}


async def test_a_killed_runner_leaves_no_sandbox_and_its_folders_go_with_the_next(folder: Path) -> None:
    """C55: kill -9 of the dispatcher with 4 live sandboxes; then a restart."""
    proxy = FakeProxy(nothing)
    process = await start(folder, await proxy.start())
    process.kill()
    await process.wait()
    await asyncio.to_thread(subprocess.run, ["sleep", "0.2"], check=True)
    assert await no_beat_moves(folder)
    assert len(beats(folder)) == 4
    with sole_owner(folder / "workspaces"):
        assert [p.name for p in (folder / "workspaces").iterdir()] == [".lock"]
    await proxy.stop()


async def test_a_second_runner_is_refused_and_sigterm_leaves_nothing(folder: Path) -> None:
    proxy = FakeProxy(nothing)
    process = await start(folder, await proxy.start())
    with pytest.raises(RunnerError, match="another runner works in"), sole_owner(folder / "workspaces"):
        raise AssertionError("two runners in one folder")
    process.send_signal(signal.SIGTERM)
    assert await asyncio.wait_for(process.wait(), 30) == 0
    assert [p.name for p in (folder / "workspaces").iterdir()] == [".lock"]
    assert len(proxy.closed) == 4
    await proxy.stop()


def test_runner_and_scoring_stay_light() -> None:
    """Neither imports torch, transformers or Megatron, even indirectly."""
    code = "import sys, producers.runner.process, consumers.scoring.process; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"torch", "transformers", "megatron", "litellm", "faust"} & set(done.stdout.split())

"""Whole runs of the runner against a scripted endpoint: what its tests share. Skips where there is no sandbox."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gyre_engine.events.executions import Discarded, Finished
from gyre_engine.events.training import Published, StepCommitted
from gyre_engine.log.memory import MemoryLog
from gyre_engine.sandbox import Isolation, Limits, SandboxUnavailable, sandbox_available
from gyre_engine.sandbox.bridge import open_bridge
from gyre_engine.scheduling.classes import ClassPlan
from gyre_engine.tasks import Source, load_catalog
from producers.runner.execution import Outside
from producers.runner.harnesses import HarnessSettings
from producers.runner.process import harness_of
from producers.runner.proxy_client import ProxyClient
from producers.runner.runner import Runner
from producers.runner.settings import RunnerSettings
from tests.integration.runner_fakes import SECRET, Answer, FakeProxy, calls, says, write_task

try:
    sandbox_available()
except SandboxUnavailable as missing:
    pytest.skip(str(missing), allow_module_level=True)


def settings_for(folder: Path, url: str, **changes: Any) -> RunnerSettings:
    base = RunnerSettings(
        plan=ClassPlan(batch=1, mu=1, phi=0, steps=1), group_size=2, sources=(Source("tasks", folder / "tasks"),),
        harness=HarnessSettings(tools=("write", "bash")), workspaces=folder / "workspaces", store=f"file://{folder}/store",
        proxy_url=url, secret=SECRET, limits=Limits(cpu_s=20, memory_mb=512, processes=64, file_mb=8), attempts=3,
    )  # fmt: skip
    return replace(base, **changes)


@asynccontextmanager
async def runner_on(log: MemoryLog, settings: RunnerSettings, folder: Path, bridge_s: float = 5.0) -> AsyncIterator[Runner]:
    """`bridge_s`: how long a call from a sandbox waits for a proxy that is away."""
    proxy = ProxyClient(settings.proxy_url, SECRET, 5.0)
    port = int(settings.proxy_url.rsplit(":", 1)[1])
    socket = folder / "p.sock"
    bridge = await open_bridge(socket, "127.0.0.1", port, bridge_s)
    isolation = sandbox_available() if settings.sandboxed else Isolation.NONE
    try:
        made = harness_of(settings.harness, settings.harbor, settings.public_url)
        yield Runner(log, load_catalog(settings.sources), Outside(settings, isolation, made, proxy, str(socket)))
    finally:
        await proxy.aclose()
        await bridge.close()


def publish(log: MemoryLog, version: int) -> None:
    """What the core logs at the end of a step."""
    committed = StepCommitted(
        core_epoch=1,
        step=version,
        attempt=1,
        merge_order=(),
        weights_hash="",
        executions=0,
        grad_norm=0.0,
        loss=0.0,
        reward_mean=0.0,
    )
    published = Published(
        core_epoch=1, version=version, weights_hash="", descriptor=b"", nbytes=0, probe_ids=np.zeros(0, np.int32),
        probe_logprobs=np.zeros(0, np.float32),
    )  # fmt: skip
    log.append_all([committed, published])


def events(log: MemoryLog, kind: type) -> list[Any]:
    topic = kind.TOPIC  # type: ignore[attr-defined]
    return [r.event for r in log.read(topic) if isinstance(r.event, kind)]


async def settled(log: MemoryLog, count: int, limit_s: float = 60.0) -> None:
    """Until `count` terminal events stand on the log."""
    async with asyncio.timeout(limit_s):
        while len(events(log, Finished)) + len(events(log, Discarded)) < count:
            await asyncio.sleep(0.05)


async def run_once(folder: Path, log: MemoryLog, answer: Answer, terminals: int = 2, **changes: Any) -> FakeProxy:
    """One step's worth of executions, then the step is committed and the runner ends by itself."""
    proxy = FakeProxy(answer)
    settings = settings_for(folder, await proxy.start(), **changes)
    try:
        async with runner_on(log, settings, folder) as runner:
            running = asyncio.create_task(runner.run())
            waiting = asyncio.create_task(settled(log, terminals))
            await asyncio.wait({running, waiting}, return_when=asyncio.FIRST_COMPLETED)
            if running.done():
                await running
            await waiting
            publish(log, 1)
            await asyncio.wait_for(running, 20)
    finally:
        await proxy.stop()
    return proxy


def writes_42(execution: str, request: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    if request["messages"][-1]["role"] == "tool":
        return 200, says("done")
    return 200, calls("write", {"path": "answer.txt", "content": "42"})


async def one_execution(tmp_path: Path, answer: Answer, toml: str = "", **changes: Any) -> tuple[MemoryLog, FakeProxy]:
    """One group of one execution, to its end."""
    write_task(tmp_path / "tasks" / "one", toml=toml)
    log = MemoryLog()
    return log, await run_once(tmp_path, log, answer, changes.pop("terminals", 1), group_size=1, **changes)


def command(line: str) -> HarnessSettings:
    return HarnessSettings(name="command", command=line)


def never(execution: str, request: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    raise AssertionError("no model call was expected")


def in_order(found: list[Any]) -> list[Any]:
    return sorted(found, key=lambda event: str(event.execution))

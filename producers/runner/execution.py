"""One execution from workspace to work product: prepare, start the harness, watch the clocks, close at the proxy, keep the work."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import fsspec

from gyre_engine.events import Event
from gyre_engine.events.executions import Discarded, DiscardReason, Ending, Finished, Started
from gyre_engine.keys import mint
from gyre_engine.sandbox import Exit, Isolation, Limits, Mount, Running, Sandbox, spawn
from gyre_engine.sandbox import relay as relay_program
from gyre_engine.sandbox.policy import python_path
from gyre_engine.tasks import Task, TaskError, mounts, prepare
from gyre_engine.work_product import WorkProduct, pack, remove_tree
from producers.runner.clock import watch
from producers.runner.endings import Facts, Stopped, judge
from producers.runner.harnesses import Endpoint, Harness, Launch
from producers.runner.proxy_client import Closed, ProxyClient, ProxyUnavailable
from producers.runner.settings import RunnerSettings

_FOLDER = "/gyre"
_SOCKET = "/gyre/proxy.sock"
_PORT = 8080
_DETAIL = 400
_CANCELLED_PATIENCE_S = 2.0
_STORE_TRIES = 3

logger = logging.getLogger("gyre.runner")

Append = Callable[[Event], Awaitable[object]]
"""Puts an event on the log; done when it is acknowledged."""


@dataclass(frozen=True, slots=True)
class Outside:
    """What all executions share: where they run and whom they talk to."""

    settings: RunnerSettings
    isolation: Isolation
    harness: Harness
    proxy: ProxyClient
    socket: str


@dataclass(frozen=True, slots=True)
class Ended:
    """A harness that has ended. `work`: what it left; `before`: the hash of a workspace that nobody touched."""

    stopped: Stopped
    exit: Exit
    work: WorkProduct
    before: str
    closed: Closed

    @property
    def did_work(self) -> bool:
        return self.work.sha256 != self.before


class Execution:
    """Runs one attempt; `outcome` is its terminal event."""

    def __init__(self, name: str, task: Task, outside: Outside, append: Append, cancelled: asyncio.Event) -> None:
        self._name, self._task, self._outside = name, task, outside
        self._append, self._cancelled = append, cancelled
        self._folder = outside.settings.workspaces / self._name
        self._began = time.monotonic()

    async def outcome(self) -> Finished | Discarded:
        """Run it to its end. `final` of a Discarded is left True: who keeps the budget decides. Leaves no workspace behind."""
        try:
            try:
                before = await asyncio.to_thread(self._prepare)
            except (TaskError, OSError) as error:
                return self._discarded(DiscardReason.ENVIRONMENT, str(error))
            await self._append(Started(execution=self._name))
            return await self._run(before)
        finally:
            await asyncio.to_thread(remove_tree, self._folder)

    def _prepare(self) -> str:
        """A fresh workspace; returns the hash of its content."""
        remove_tree(self._folder)
        for part in ("root/logs/agent", "root/logs/verifier", "gyre"):
            (self._folder / part).mkdir(parents=True)
        (self._folder / "gyre" / "proxy.sock").touch()  # where the socket is mounted
        prepare(self._task, self._folder / "root")
        return pack(self._folder / "root").sha256

    async def _run(self, before: str) -> Finished | Discarded:
        endpoint, folder = self._endpoint(), self._place(_FOLDER)
        launch = self._outside.harness.launch(self._task, endpoint, folder, self._place(self._task.image.workdir))
        try:
            running = self._start(launch)
        except OSError as error:
            return self._discarded(DiscardReason.ENVIRONMENT, f"the harness could not be started: {error}")
        try:
            stopped = await self._watch(running)
        finally:
            running.kill()
        exit = await running.exit()
        closed = await self._close(stopped)
        work = await asyncio.to_thread(pack, self._folder / "root", limit_bytes=self._outside.settings.work_limit_bytes)
        await asyncio.gather(*map(self._append, self._outside.harness.tool_results(self._name, exit)))
        return await self._verdict(Ended(stopped, exit, work, before, closed))

    async def _close(self, stopped: Stopped) -> Closed:
        """A cancelled execution counts nowhere, and the proxy may be going down with us: it is not waited for long."""
        if stopped is not Stopped.CANCELLED:
            return await self._outside.proxy.close_execution(self._name)
        try:
            return await self._outside.proxy.close_execution(self._name, patience_s=_CANCELLED_PATIENCE_S)
        except ProxyUnavailable as error:
            logger.warning("%s", error)
            return Closed(0, 0)

    async def _watch(self, running: Running) -> Stopped:
        settings = self._outside.settings
        served_s = settings.harness_timeout_s or self._task.agent_timeout_s or settings.overall_timeout_s

        async def held() -> float | None:
            held_us = await self._outside.proxy.held_us(self._name)
            return None if held_us is None else held_us / 1e6

        return await watch(running, served_s=served_s, overall_s=settings.overall_timeout_s, held=held, cancelled=self._cancelled)

    async def _verdict(self, ended: Ended) -> Finished | Discarded:
        said = self._outside.harness.outcome(ended.exit)
        verdict = judge(Facts(ended.stopped, ended.exit.came_up, said, ended.did_work))
        detail = self._detail(ended)
        if isinstance(verdict, DiscardReason):
            return self._discarded(verdict, detail)
        url = await self._keep(ended.work)
        return self._finished(verdict, url, ended, detail)

    def _finished(self, ending: Ending, url: str, ended: Ended, detail: str) -> Finished:
        wall_us = int(ended.exit.wall_s * 1e6)
        return Finished(
            execution=self._name, ending=ending, work_url=url, work_hash=ended.work.sha256, did_work=ended.did_work,
            served_us=max(wall_us - ended.closed.held_us, 0), wall_us=wall_us, exit_code=ended.exit.code, detail=detail,
        )  # fmt: skip

    def _discarded(self, reason: DiscardReason, detail: str) -> Discarded:
        wall_us = int((time.monotonic() - self._began) * 1e6)
        return Discarded(execution=self._name, reason=reason, final=True, wall_us=wall_us, detail=detail[:_DETAIL])

    def _detail(self, ended: Ended) -> str:
        """What was left out of the work product, and the harness's last words where it failed."""
        parts = [f"left out {path}" for path in ended.work.dropped[:5]]
        if ended.exit.code != 0:
            parts.append(ended.exit.output[-_DETAIL:].decode(errors="replace").strip())
        return "; ".join(parts)[-_DETAIL:]

    async def _keep(self, work: WorkProduct) -> str:
        """The URL of the stored tar; a store that stumbles is tried again. Raises OSError."""
        url = f"{self._outside.settings.store.rstrip('/')}/work/{self._name}.tar"
        for _ in range(_STORE_TRIES - 1):
            try:
                await asyncio.to_thread(_write, url, work.data)
                return url
            except OSError as error:
                logger.warning("cannot write %s (%s): trying again", url, error)
                await asyncio.sleep(1.0)
        await asyncio.to_thread(_write, url, work.data)
        return url

    def _place(self, path: str) -> str:
        """A path inside, as a process of this execution sees it."""
        if self._outside.isolation is Isolation.NONE:
            return str(self._sandbox({}, ()).host_path(path))
        return path

    def _endpoint(self) -> Endpoint:
        settings, harness = self._outside.settings, self._outside.harness
        key = mint(settings.secret, self._name)
        if self._outside.isolation is Isolation.NONE:
            return Endpoint(f"{settings.proxy_url.rstrip('/')}/v1", settings.model, key)
        return Endpoint(f"http://127.0.0.1:{_PORT}/v1", settings.model, key, _SOCKET if harness.speaks_unix else "")

    def _start(self, launch: Launch) -> Running:
        for name, data in launch.files.items():
            (self._folder / "gyre" / name).write_bytes(data)
        argv: Sequence[str] = launch.argv
        if self._outside.isolation is not Isolation.NONE and not self._outside.harness.speaks_unix:
            (self._folder / "gyre" / "relay.py").write_bytes(Path(relay_program.__file__).read_bytes())
            argv = (python_path(), "-I", "-S", f"{_FOLDER}/relay.py", str(_PORT), _SOCKET, *argv)
        return spawn(self._sandbox(launch.env, launch.mounts), argv, self._outside.isolation)

    def _sandbox(self, env: Mapping[str, str], more: tuple[Mount, ...]) -> Sandbox:
        root = self._folder / "root"
        places = [*mounts(self._task, root), Mount(root / "logs", "/logs", writable=True), Mount(self._folder / "gyre", _FOLDER)]
        if self._outside.isolation is not Isolation.NONE:
            places.append(Mount(Path(self._outside.socket), _SOCKET))
        return Sandbox(self._task.image.workdir, (*places, *more), {**dict(self._task.env), **env}, self._limits())

    def _limits(self) -> Limits:
        """The task's own memory where it asks for less."""
        limits = self._outside.settings.limits
        if 0 < self._task.memory_mb < (limits.memory_mb or self._task.memory_mb + 1):
            return replace(limits, memory_mb=self._task.memory_mb)
        return limits


def _write(url: str, data: bytes) -> None:
    with fsspec.open(url, "wb", auto_mkdir=True) as file:
        file.write(data)

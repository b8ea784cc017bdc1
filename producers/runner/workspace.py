"""A place in this machine's sandbox: a folder of the runner's, mounted where the task expects it, and the harness started in it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from gyre_engine.events.executions import Ending, ToolReturned
from gyre_engine.keys import mint
from gyre_engine.sandbox import Exit, Isolation, Limits, Mount, Running, Sandbox, spawn
from gyre_engine.sandbox import relay as relay_program
from gyre_engine.sandbox.policy import python_path
from gyre_engine.tasks import Task, filled, mounts, prepare
from gyre_engine.work_product import WorkProduct, pack, remove_tree
from producers.runner.harnesses import Endpoint, Harness, Trouble
from producers.runner.settings import RunnerSettings

_FOLDER = "/gyre"
_SOCKET = "/gyre/proxy.sock"
_PORT = 8080


class Workspace:
    """The Place of one execution. `socket`: where the host has the proxy's."""

    def __init__(
        self, name: str, task: Task, harness: Harness, settings: RunnerSettings, isolation: Isolation, socket: str
    ) -> None:
        self._name, self._task, self._harness, self._settings = name, task, harness, settings
        self._isolation, self._socket = isolation, socket
        self._folder = settings.workspaces / name

    async def prepare(self) -> str:
        return await asyncio.to_thread(self._prepare)

    def _prepare(self) -> str:
        """A fresh workspace; returns the hash of its content."""
        remove_tree(self._folder)
        for part in ("root/logs/agent", "root/logs/verifier", "gyre"):
            (self._folder / part).mkdir(parents=True)
        (self._folder / "gyre" / "proxy.sock").touch()  # where the socket is mounted
        prepare(self._task, self._folder / "root")
        filled(self._task, self._task.env)  # told before the agent starts
        return pack(self._folder / "root").sha256

    def start(self) -> Running:
        launch = self._harness.launch(self._task, self._endpoint(), self._place(_FOLDER), self._place(self._task.image.workdir))
        for name, data in launch.files.items():
            (self._folder / "gyre" / name).write_bytes(data)
        argv: Sequence[str] = launch.argv
        if self._isolation is not Isolation.NONE and not self._harness.speaks_unix:
            (self._folder / "gyre" / "relay.py").write_bytes(Path(relay_program.__file__).read_bytes())
            argv = (python_path(), "-I", "-S", f"{_FOLDER}/relay.py", str(_PORT), _SOCKET, *argv)
        return spawn(self._sandbox(launch.env, launch.mounts), argv, self._isolation)

    async def work(self) -> WorkProduct:
        return await asyncio.to_thread(pack, self._folder / "root", limit_bytes=self._settings.work_limit_bytes)

    def outcome(self, exit: Exit) -> Ending | Trouble:
        return self._harness.outcome(exit)

    def tool_results(self, exit: Exit) -> list[ToolReturned]:
        return self._harness.tool_results(self._name, exit)

    async def remove(self) -> None:
        await asyncio.to_thread(remove_tree, self._folder)

    def _place(self, path: str) -> str:
        """A path inside, as a process of this execution sees it."""
        if self._isolation is Isolation.NONE:
            return str(self._sandbox({}, ()).host_path(path))
        return path

    def _endpoint(self) -> Endpoint:
        settings = self._settings
        key = mint(settings.secret, self._name)
        if self._isolation is Isolation.NONE:
            return Endpoint(f"{settings.proxy_url.rstrip('/')}/v1", settings.model, key)
        return Endpoint(f"http://127.0.0.1:{_PORT}/v1", settings.model, key, _SOCKET if self._harness.speaks_unix else "")

    def _sandbox(self, env: Mapping[str, str], more: tuple[Mount, ...]) -> Sandbox:
        root = self._folder / "root"
        places = [*mounts(self._task, root), Mount(root / "logs", "/logs", writable=True), Mount(self._folder / "gyre", _FOLDER)]
        if self._isolation is not Isolation.NONE:
            places.append(Mount(Path(self._socket), _SOCKET))
        own = filled(self._task, self._task.env)
        return Sandbox(self._task.image.workdir, (*places, *more), {**own, **env}, self._limits())

    def _limits(self) -> Limits:
        """The task's own memory where it asks for less."""
        limits = self._settings.limits
        if 0 < self._task.memory_mb < (limits.memory_mb or self._task.memory_mb + 1):
            return replace(limits, memory_mb=self._task.memory_mb)
        return limits

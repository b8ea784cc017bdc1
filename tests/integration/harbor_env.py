"""An environment and an agent of Harbor's kinds for the tests, named to Harbor by import path: nothing here needs docker or a network.

The environment is a folder a session that stands for `/`: its children are mounted where they belong, over this machine's /usr, and
commands run under bubblewrap with the host's network and processes. As in docker, what a command leaves running outlives it.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, ClassVar

from harbor.agents.installed import base as installed
from harbor.environments.base import BaseEnvironment, ExecResult

from gyre_engine.sandbox import find_bwrap
from gyre_engine.tasks.dockerfile import read_dockerfile

_FOLDERS = ("app", "data", "home", "installed-agent", "logs", "opt", "root", "solution", "srv", "tests", "tmp")
_REPOSITORY = Path(__file__).parents[2]
_MARK = "BUBBLE_SESSION"


class BubbleEnvironment(BaseEnvironment):
    """`folder`: where the sessions lie. `broken`: it does not come up; `endless`: nor fails to.

    `survivors`: processes of agents, seen when one was stopped.
    """

    survivors: ClassVar[list[str]] = []
    stopped: ClassVar[list[str]] = []
    users: ClassVar[set[str | int | None]] = set()

    def __init__(
        self, *given: Any, folder: str = "/tmp/bubbles", broken: bool = False, endless: bool = False, **more: Any
    ) -> None:
        super().__init__(*given, **more)
        self._root, self._broken, self._endless = Path(folder) / self.session_id, broken, endless
        self._image = read_dockerfile((self.environment_dir / "Dockerfile").read_text())

    @staticmethod
    def type() -> str:
        return "bubble"

    def _validate_definition(self) -> None:
        """Anything goes."""

    async def start(self, force_build: bool) -> None:
        if self._broken:
            raise RuntimeError("no room for another bubble")
        for name in _FOLDERS:
            (self._root / name).mkdir(parents=True)
        if self._endless:
            await asyncio.Event().wait()
        self._host(self._image.workdir).mkdir(parents=True, exist_ok=True)
        await self.ensure_dirs(self._mount_targets(writable_only=True))
        for copy in self._image.copies:
            self._host(copy.target if copy.into else str(Path(copy.target).parent)).mkdir(parents=True, exist_ok=True)
            for source in copy.sources:
                shutil.copy(
                    self.environment_dir / source, self._host(copy.target) / source if copy.into else self._host(copy.target)
                )
        for line in self._image.missing:
            done = await self.exec(line.removeprefix("RUN "))
            assert done.return_code == 0, done

    async def stop(self, delete: bool) -> None:
        type(self).survivors += [
            mark for pid in _pids() if (mark := _variable(pid, "GYRE_TRIAL")) and self.session_id.startswith(mark)
        ]
        for pid in _pids():
            if _variable(pid, _MARK) == self.session_id:
                os.kill(pid, signal.SIGKILL)
        type(self).stopped.append(self.session_id)
        shutil.rmtree(self._root, ignore_errors=True)

    def _host(self, path: str) -> Path:
        return self._root / path.lstrip("/")

    async def upload_file(self, source_path: Path | str, target_path: str) -> None:
        self._host(target_path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source_path, self._host(target_path))

    async def upload_dir(self, source_dir: Path | str, target_dir: str) -> None:
        shutil.copytree(source_dir, self._host(target_dir), symlinks=True, dirs_exist_ok=True)

    async def download_file(self, source_path: str, target_path: Path | str) -> None:
        shutil.copy(self._host(source_path), target_path, follow_symlinks=False)

    async def download_dir(self, source_dir: str, target_dir: Path | str) -> None:
        shutil.copytree(self._host(source_dir), target_dir, symlinks=True, dirs_exist_ok=True)

    async def exec(
        self, command: str, cwd: str | None = None, env: dict[str, str] | None = None, timeout_sec: int | None = None,
        user: str | int | None = None,
    ) -> ExecResult:  # fmt: skip
        type(self).users.add(self._resolve_user(user))
        where = cwd or self.task_env_config.workdir or self._image.workdir
        given = {
            "PATH": f"{sys.prefix}/bin:/usr/local/bin:/usr/bin:/bin",
            "HOME": "/root",
            "LANG": "C.UTF-8",
            _MARK: self.session_id,
        }
        given |= {**dict(self._image.env), **(self._merge_env(env) or {})}
        process = subprocess.Popen(
            [*self._bubble(where), "bash", "-c", command], env=given, start_new_session=True, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        try:
            out, err = await asyncio.wait_for(asyncio.shield(asyncio.to_thread(process.communicate)), timeout_sec)
        except TimeoutError:
            process.kill()
            return ExecResult(stdout="", stderr="timed out", return_code=124)
        return ExecResult(stdout=out, stderr=err, return_code=process.returncode)

    def _bubble(self, where: str) -> list[str]:
        options = ["--ro-bind", "/usr", "/usr", "--ro-bind", "/etc", "/etc", "--proc", "/proc", "--dev", "/dev", "--chdir", where]
        for link in ("bin", "sbin", "lib", "lib64"):
            options += ["--symlink", f"usr/{link}", f"/{link}"]
        for folder in (self._root / name for name in _FOLDERS):
            options += ["--bind", str(folder), f"/{folder.name}"]
        for folder in (Path(sys.prefix), _REPOSITORY):
            options += ["--ro-bind", str(folder), str(folder)] if not str(folder).startswith("/usr") else []
        return [str(find_bwrap()), *options]


def _pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def _variable(pid: int, name: str) -> str:
    try:
        pairs = Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return ""
    return next((pair.partition("=")[2] for pair in pairs if pair.startswith(f"{name}=")), "")


class Worker(installed.BaseInstalledAgent):
    """Runs `script` in the environment, then raises Harbor's exception of the name `raises`, if any."""

    def __init__(self, *given: Any, script: str = "true", raises: str = "", **more: Any) -> None:
        super().__init__(*given, **more)
        self._script, self._raises = script, raises

    @staticmethod
    def name() -> str:
        return "worker"

    async def install(self, environment: BaseEnvironment) -> None:
        """Leaves a trace, which is not the agent's work."""
        await self.exec_as_root(environment, "echo installed >/app/installed.txt")

    async def run(self, instruction: str, environment: BaseEnvironment, context: Any) -> None:
        await self.exec_as_agent(environment, self._script)
        if self._raises:
            raise getattr(installed, self._raises)("as the test wants it")

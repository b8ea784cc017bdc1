"""Starts a sandboxed process, collects what it prints within a limit, and ends it with all that it started.

The process dies with the thread that started it (bubblewrap's --die-with-parent), so `spawn` belongs on the event loop's thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import signal
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gyre_engine.sandbox.isolation import Isolation
from gyre_engine.sandbox.policy import Sandbox, command_line, environment

_FIRST_UID, _UIDS = 100_000, 800_000
_DRAIN_S = 5.0
"""How long to wait, after the end, for the last processes to let go of the output."""

_numbers = itertools.count()


@dataclass(frozen=True, slots=True)
class Exit:
    """How a process ended. `code` is negative for a signal. `came_up`: the environment stood and the program was started."""

    code: int
    output: bytes
    cut: bool
    came_up: bool
    wall_s: float


class _Output:
    """The first and the last half of `limit` bytes of a stream."""

    def __init__(self, limit: int) -> None:
        self.half, self.head, self.tail, self.seen = max(limit // 2, 1), bytearray(), bytearray(), 0

    def add(self, data: bytes) -> None:
        self.seen += len(data)
        room = self.half - len(self.head)
        self.head += data[:room] if room > 0 else b""
        self.tail += data[max(room, 0) :]
        if len(self.tail) > 2 * self.half:
            del self.tail[: -self.half]

    def text(self) -> tuple[bytes, bool]:
        tail = bytes(self.tail[-self.half :])
        return bytes(self.head) + tail, self.seen > len(self.head) + len(tail)


class Running:
    """A process in its sandbox."""

    def __init__(self, process: subprocess.Popen[bytes], output_fd: int, up_fd: int, isolation: Isolation, limit: int) -> None:
        self.pid, self._process, self._isolation = process.pid, process, isolation
        self._started = time.monotonic()
        self._output, self._output_fd, self._up_fd = _Output(limit), output_fd, up_fd
        self._loop = asyncio.get_running_loop()
        self._ended, self._drained = asyncio.Event(), asyncio.Event()
        self._wall_s = 0.0
        os.set_blocking(output_fd, False)
        self._loop.add_reader(output_fd, self._read)
        self._pidfd = os.pidfd_open(process.pid)
        self._loop.add_reader(self._pidfd, self._reap)

    def _read(self) -> None:
        with contextlib.suppress(BlockingIOError):
            if data := os.read(self._output_fd, 65536):
                self._output.add(data)
                return
            self._loop.remove_reader(self._output_fd)
            self._drained.set()

    def _reap(self) -> None:
        self._loop.remove_reader(self._pidfd)
        os.close(self._pidfd)
        self._process.wait()
        self._wall_s = time.monotonic() - self._started
        self._ended.set()

    @property
    def elapsed_s(self) -> float:
        """Wall clock seconds since the start."""
        return self._wall_s if self._ended.is_set() else time.monotonic() - self._started

    async def wait(self, timeout: float) -> bool:
        """Whether the process ended within `timeout` seconds."""
        try:
            await asyncio.wait_for(self._ended.wait(), max(timeout, 0.0))
        except TimeoutError:
            return False
        return True

    def kill(self) -> None:
        """End the process and all that it started, at once."""
        if self._ended.is_set():
            return
        with contextlib.suppress(ProcessLookupError):
            if self._isolation is Isolation.NONE:
                os.killpg(self.pid, signal.SIGKILL)
            else:
                self._process.kill()

    async def exit(self) -> Exit:
        """What is known once it has ended; call it once. Waits for the end: kill first where there is a limit."""
        await self._ended.wait()
        if self._isolation is Isolation.NONE:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._drained.wait(), _DRAIN_S)
        if not self._drained.is_set():
            self._loop.remove_reader(self._output_fd)
        came_up = self._came_up()
        os.close(self._output_fd)
        os.close(self._up_fd)
        text, cut = self._output.text()
        return Exit(self._code(), text, cut, came_up, self._wall_s)

    def _came_up(self) -> bool:
        try:
            return bool(os.read(self._up_fd, 1))
        except BlockingIOError:
            return False

    def _code(self) -> int:
        """bubblewrap reports a signal as 128 + n."""
        code = self._process.returncode
        return 128 - code if self._isolation is not Isolation.NONE and 128 < code < 128 + 65 else code


def spawn(sandbox: Sandbox, argv: Sequence[str], isolation: Isolation) -> Running:
    """Start `argv` under the policy. Raises OSError where the program or a folder is missing."""
    uid = _FIRST_UID + (os.getpid() * 7919 + next(_numbers)) % _UIDS
    if isolation is Isolation.ROOT:
        for mount in sandbox.mounts:
            if mount.writable:
                _give(mount.source, uid)
    line = command_line(sandbox, argv, isolation, uid)
    folder = str(sandbox.host_path(sandbox.workdir)) if isolation is Isolation.NONE else "/"
    out_read, out_write = os.pipe()
    up_read, up_write = os.pipe()
    os.set_blocking(up_read, False)
    try:
        process = subprocess.Popen(
            line, env=environment(sandbox), cwd=folder, stdin=up_write, stdout=out_write, stderr=out_write,
            start_new_session=isolation is Isolation.NONE,
        )  # fmt: skip
    except OSError:
        os.close(out_read)
        os.close(up_read)
        raise
    finally:
        os.close(out_write)
        os.close(up_write)
    return Running(process, out_read, up_read, isolation, sandbox.limits.output_bytes)


def _give(path: Path, uid: int) -> None:
    """Hand a tree to `uid`, links themselves and never their targets."""
    os.chown(path, uid, uid, follow_symlinks=False)
    if path.is_dir() and not path.is_symlink():
        for entry in os.scandir(path):
            _give(Path(entry.path), uid)

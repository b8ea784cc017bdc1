"""The stack of a folder: its lock (one stack a folder), and `stack.json`, by which other commands find and stop it."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from infra.supervisor.children import alive, start_ticks
from infra.supervisor.spec import ProcessStatus, State

STATE_FILE = "stack.json"
LOCK_FILE = "stack.lock"


class StackRunning(RuntimeError):
    """The folder has a running stack already; the text names its process and the remedy."""


@dataclass(frozen=True, slots=True)
class StackState:
    """What `stack.json` says. `facts`: run, ports and whatever else the stack notes about itself (plain values)."""

    pid: int
    start: int
    facts: Mapping[str, Any]
    processes: tuple[ProcessStatus, ...]

    @property
    def running(self) -> bool:
        """Whether the supervisor that wrote it still runs."""
        return alive(self.pid, self.start)

    @property
    def serving(self) -> bool:
        """Whether it still keeps processes: a supervisor that has stopped its stack may live on."""
        return self.running and bool(self.left_over())

    def left_over(self) -> list[ProcessStatus]:
        """Its processes that still run."""
        return [process for process in self.processes if process.pid and alive(process.pid, process.start)]


class StackLock:
    """Holds a folder for one stack, until it is released or the process ends, however it ends."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._file = os.open(folder / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(self._file)
            raise StackRunning(
                f"a stack runs in {folder} already{_by(folder)}: `gyre stop` ends it, or use another folder."
            ) from error

    def release(self) -> None:
        """Let the folder go."""
        os.close(self._file)


def write_state(folder: Path, facts: Mapping[str, Any], processes: Sequence[ProcessStatus]) -> None:
    """Write the calling supervisor's state; a reader sees the old or the new file, never half of one."""
    me = os.getpid()
    state = {"pid": me, "start": start_ticks(me), "facts": dict(facts), "processes": [asdict(p) for p in processes]}
    part = folder / f"{STATE_FILE}.part"
    part.write_text(json.dumps(state, indent=1))
    part.rename(folder / STATE_FILE)


def read_state(folder: Path) -> StackState | None:
    """The state of the folder's stack, running or not; None where there never was one."""
    try:
        state = json.loads((folder / STATE_FILE).read_text())
    except FileNotFoundError:
        return None
    processes = tuple(ProcessStatus(**{**p, "state": State(p["state"])}) for p in state["processes"])
    return StackState(state["pid"], state["start"], state["facts"], processes)


def stop_stack(folder: Path, seconds: float = 15.0) -> bool:
    """Ask the folder's stack to end and wait; kill its supervisor (and so everything) after `seconds`. False: none ran."""
    state = read_state(folder)
    if state is None or not state.running:
        return False
    os.kill(state.pid, signal.SIGTERM)
    if not _gone(state, seconds):
        os.kill(state.pid, signal.SIGKILL)
        _gone(state, 5.0)
    return True


def _gone(state: StackState, seconds: float) -> bool:
    until = time.monotonic() + seconds
    while state.running and time.monotonic() < until:
        time.sleep(0.05)
    return not state.running


def _by(folder: Path) -> str:
    state = read_state(folder)
    return f" (process {state.pid})" if state is not None and state.running else ""

"""What the supervisor is told about a process, and what it says about one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import msgpack


@dataclass(frozen=True, slots=True)
class RestartPolicy:
    """A process that ended is started again, at most `limit` times within `window_seconds`, after a delay that doubles."""

    limit: int = 5
    window_seconds: float = 60.0
    first_delay: float = 0.25
    longest_delay: float = 10.0

    def delay(self, restarts: int) -> float:
        """Seconds to wait before a restart, after `restarts` others within the window."""
        return min(self.longest_delay, self.first_delay * 2.0**restarts)


@dataclass(frozen=True, slots=True)
class ProcessSpec:
    """One process of a stack: a Python function by name with its keyword arguments, or a program.

    `target`  "module:function"; `args` (plain values) travel by a file that only the child reads, never by the command line.
    `argv`    a program and its arguments, instead of `target`.
    `heavy`   forked from the preloader named `parent`, which has imported what takes long (needs `target`).
    `ends`    whether it may end by itself with status 0; anything else is started again.
    `stage`   processes of lower stages are stopped first.
    `ready`   asked by `Supervisor.wait_ready` until it says True.
    """

    name: str
    target: str = ""
    args: Mapping[str, Any] = field(default_factory=dict, repr=False)
    argv: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    heavy: bool = False
    parent: str = "preloader"
    ends: bool = False
    stage: int = 0
    restart: RestartPolicy = RestartPolicy()
    ready: Callable[[], bool] | None = None

    def __post_init__(self) -> None:
        if bool(self.target) == bool(self.argv):
            raise ValueError(f"process {self.name!r}: give either target or argv")
        if self.heavy and not self.target:
            raise ValueError(f"process {self.name!r}: a heavy process needs a target")
        try:
            msgpack.packb(dict(self.args))
        except (TypeError, ValueError) as error:
            raise ValueError(f"process {self.name!r}: args take plain values only: {error}") from error


class State(StrEnum):
    """Where a process stands."""

    WAITING = "waiting"
    """For the preloader, or for its delay before a restart."""
    RUNNING = "running"
    DONE = "done"
    """It ended by itself with status 0 and may."""
    FAILED = "failed"
    """The budget of restarts is spent, or another start would end the same way."""
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class ProcessStatus:
    """A process as it stands now. `start`: its start time in clock ticks since boot (with the pid it names one process)."""

    name: str
    state: State
    pid: int = 0
    start: int = 0
    restarts: int = 0
    heavy: bool = False
    last_exit: str = ""


@dataclass(frozen=True, slots=True)
class SupervisorEvent:
    """Something happened to a process: `started`, `ended`, `restarting`, `gave-up`, `stopped`; `ready`: the preloader has imported."""

    kind: str
    name: str
    pid: int
    text: str


def describe_exit(code: int) -> str:
    """An exit status in words; negative is the number of the signal, as subprocess has it."""
    return f"killed by signal {-code}" if code < 0 else f"ended with status {code}"

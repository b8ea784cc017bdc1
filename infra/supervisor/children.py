"""A running process as the supervisor holds it: its pid, whether it lives, signals to it and to its group."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Protocol

import msgpack

from gyre_engine.lifeline import tied
from infra.supervisor.spec import ProcessSpec
from infra.supervisor.target import child_environment


class Child(Protocol):
    """A process that was started."""

    pid: int

    def poll(self) -> int | None:
        """Its exit status (negative: the signal), or None while it lives."""

    def signal(self, number: int, *, group: bool = False) -> None:
        """Signal it, or its whole process group; nothing where it is gone."""


class LightChild:
    """A child of the supervisor itself. It must be started on the thread that supervises: the kernel ties it to that."""

    def __init__(self, spec: ProcessSpec, log_file: Path) -> None:
        with order_file(spec) as order, log_file.open("ab") as out:
            self._process = subprocess.Popen(
                command(spec),
                stdin=order,
                stdout=out,
                stderr=subprocess.STDOUT,
                env=child_environment(spec.env),
                process_group=0,
            )
        self.pid = self._process.pid

    def poll(self) -> int | None:
        return self._process.poll()

    def signal(self, number: int, *, group: bool = False) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if group:
                os.killpg(self.pid, number)
            elif self._process.returncode is None:
                os.kill(self.pid, number)


def command(spec: ProcessSpec) -> Sequence[str]:
    """The command line of a light process."""
    if spec.argv:
        return tied(spec.argv)
    return [sys.executable, "-m", "infra.supervisor.child", str(os.getpid())]


def order_file(spec: ProcessSpec) -> IO[bytes]:
    """What the child reads on its stdin: a file that has no name any more."""
    file = tempfile.TemporaryFile()  # noqa: SIM115
    if spec.target:
        file.write(msgpack.packb({"name": spec.name, "target": spec.target, "args": dict(spec.args)}))
        file.seek(0)
    return file


def start_ticks(pid: int) -> int:
    """A process' start time in clock ticks since boot; 0 where there is none."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return 0
    return int(text.rpartition(")")[2].split()[19])


def alive(pid: int, start: int) -> bool:
    """Whether the process that was noted as (pid, start) still runs (a zombie does not)."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return False
    return fields[0] not in "ZX" and int(fields[19]) == start

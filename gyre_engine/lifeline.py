"""A process that does not outlive its parent (PR_SET_PDEATHSIG), whatever ends the parent.

As a program it is a launcher: `python -I -S lifeline.py PARENT_PID PROGRAM ARGUMENT...` ties itself to its parent and becomes the
program; the tie survives `exec`. The kernel ties to the parent *thread*: whoever starts a process so keeps that thread alive.
Imports only the standard library, and little of it: it runs before everything else.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when its parent thread ends. Exits at once where `parent` is gone already."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"prctl(PR_SET_PDEATHSIG): {os.strerror(number)}")
    if os.getppid() != parent:
        os._exit(os.EX_UNAVAILABLE)


def name_process(name: str) -> None:
    """Show `name` (its first 15 bytes) in ps and top."""
    ctypes.CDLL(None).prctl(_PR_SET_NAME, name.encode()[:15], 0, 0, 0)


def tied(argv: Sequence[str]) -> list[str]:
    """The command that runs `argv` tied to the calling process."""
    return [sys.executable, "-I", "-S", str(Path(__file__).resolve()), str(os.getpid()), *argv]


def main() -> None:
    """Tie, then become the program in argv."""
    die_with_parent(int(sys.argv[1]))
    program = sys.argv[2]
    try:
        os.execvp(program, sys.argv[2:])  # noqa: S606
    except OSError as error:
        sys.exit(f"gyre: cannot start {program}: {error.strerror}")


if __name__ == "__main__":
    main()

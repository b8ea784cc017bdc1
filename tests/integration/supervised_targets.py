"""What the supervisor's tests have it run."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from pathlib import Path

from gyre_engine.dead_end import DeadEnd


def sleeper(note: str) -> None:
    """Note the pid and sleep until SIGTERM."""
    done = threading.Event()
    signal.signal(signal.SIGTERM, lambda _number, _frame: done.set())
    _note(note)
    done.wait()
    print("ended cleanly")


def stubborn(note: str) -> None:
    """Ignore SIGTERM."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    _note(note)
    threading.Event().wait()


def crasher(note: str, times: int) -> None:
    """Fail at the first `times` starts, then sleep."""
    _note(note)
    if len(Path(note).read_text().split()) <= times:
        print("about to fail", file=sys.stderr)
        raise RuntimeError("a reason in the log")
    sleeper(note)


def hopeless(note: str, reason: str) -> None:
    """Fail for a reason that stays."""
    _note(note)
    raise DeadEnd(reason)


def finisher(note: str, status: int = 0) -> int:
    """End at once."""
    _note(note)
    return status


def parent(note: str) -> None:
    """Start a child of its own in the same process group, then sleep."""
    if os.fork() == 0:
        _note(note)
        while True:
            time.sleep(60)
    sleeper(note)


def secret_holder(note: str, secret: str) -> None:
    """Check that the argument came, and that the command line does not show it."""
    shown = Path("/proc/self/cmdline").read_text() + Path("/proc/self/environ").read_text()
    _note(note)
    Path(note).write_text(f"{os.getpid()} {secret in shown} {len(secret)}")


def heavy(note: str) -> None:
    """Note whether the preloaded module is there without an import, and the thread count, then sleep."""
    Path(f"{note}.modules").write_text(f"{'fractions' in sys.modules} {os.environ.get('MARK')} {os.environ['OMP_NUM_THREADS']}")
    sleeper(note)


def _note(note: str) -> None:
    with Path(note).open("a") as file:
        file.write(f"{os.getpid()}\n")

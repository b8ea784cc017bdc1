"""What a sandboxed process may see and use, as a bubblewrap command line.

It sees the host's /usr read-only, a few files of /etc, a private /tmp, /dev and /proc, and what is mounted for it; no network
but its own loopback. Limits are rlimits: memory, processor time and file size hold for each process, the number of processes
for the whole sandbox (where we are root and `setpriv` is missing the kernel does not count them).
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gyre_engine.sandbox.isolation import Isolation, find_bwrap

_ETC = (
    "alternatives", "ca-certificates", "group", "hosts", "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "localtime", "nsswitch.conf",
    "passwd", "pki", "ssl",
)  # fmt: skip
SYSTEM_FOLDERS = frozenset(
    {"bin", "dev", "etc", "gyre", "lib", "lib32", "lib64", "proc", "run", "sbin", "sys", "tmp", "usr", "var"}
)
"""Top-level folders that belong to the sandbox itself: nothing of a task can be mounted there."""

_LIMITED = (
    "ulimit -c 0; ulimit -t {cpu}; ulimit -d {memory}; ulimit -f {file}; "
    "ulimit -p {processes} 2>/dev/null || ulimit -u {processes}; "
    'command -v "$1" >/dev/null || {{ echo "cannot run $1"; exit 127; }}; '
    'printf . >&0; exec "$@" </dev/null'
)
"""Runs in the sandbox as `sh -c`. The byte on descriptor 0 tells the parent that the environment came up."""


@dataclass(frozen=True, slots=True)
class Limits:
    """`memory_mb` 0: no limit. Processor seconds, memory and file size are for each process."""

    cpu_s: int = 3600
    memory_mb: int = 2048
    processes: int = 128
    file_mb: int = 64
    output_bytes: int = 1 << 20


@dataclass(frozen=True, slots=True)
class Mount:
    """`source` on the host appears as `target` (absolute) in the sandbox."""

    source: Path
    target: str
    writable: bool = False


@dataclass(frozen=True, slots=True)
class Sandbox:
    """`env` is the whole environment; secrets go there and never on the command line."""

    workdir: str
    mounts: tuple[Mount, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    limits: Limits = Limits()

    def host_path(self, target: str) -> Path:
        """Where a path inside lies on the host. Raises KeyError where nothing is mounted there."""
        for mount in reversed(self.mounts):
            if target == mount.target or target.startswith(mount.target.rstrip("/") + "/"):
                return mount.source / os.path.relpath(target, mount.target) if target != mount.target else mount.source
        raise KeyError(f"nothing is mounted at {target}")


def python_path() -> str:
    """The interpreter inside: the one that Gyre's environment was made from, with no packages."""
    return os.path.realpath(getattr(sys, "_base_executable", sys.executable))


def environment(sandbox: Sandbox) -> dict[str, str]:
    """A clean environment: only these names and the policy's own."""
    path = f"{os.path.dirname(python_path())}:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"
    base = {"PATH": path, "HOME": "/tmp", "TMPDIR": "/tmp", "LANG": "C.UTF-8", "USER": "agent"}  # noqa: S108 - private in the sandbox
    return {**base, **sandbox.env}


def command_line(sandbox: Sandbox, argv: Sequence[str], isolation: Isolation, uid: int) -> list[str]:
    """The whole command line that runs `argv` under the policy. `uid` is used by Isolation.ROOT only."""
    limited = ["/bin/sh", "-c", _script(sandbox.limits), "sh", *argv]
    if isolation is Isolation.NONE:
        return limited
    return [find_bwrap(), *_namespaces(isolation), *_system(), *_mounts(sandbox), *_identity(isolation, uid), *limited]


def _script(limits: Limits) -> str:
    memory = str(limits.memory_mb * 1024) if limits.memory_mb else "unlimited"
    return _LIMITED.format(cpu=limits.cpu_s, memory=memory, file=limits.file_mb * 2048, processes=limits.processes)


def _namespaces(isolation: Isolation) -> list[str]:
    apart = [
        "--unshare-ipc",
        "--unshare-pid",
        "--unshare-net",
        "--unshare-uts",
        "--die-with-parent",
        "--new-session",
        "--cap-drop",
        "ALL",
    ]
    if isolation is Isolation.ROOT:
        return [*apart, "--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"]
    return [*apart, "--unshare-user", "--uid", "1000", "--gid", "1000"]


def _identity(isolation: Isolation, uid: int) -> list[str]:
    if isolation is not Isolation.ROOT:
        return []
    return ["setpriv", "--reuid", str(uid), "--regid", str(uid), "--clear-groups", "--no-new-privs"]


@functools.cache
def _system() -> tuple[str, ...]:
    """The read-only host: /usr and its links, the interpreter's folder, a few files of /etc."""
    options = ["--ro-bind", "/usr", "/usr", "--proc", "/proc", "--dev", "/dev", "--perms", "1777", "--tmpfs", "/tmp"]  # noqa: S108
    for name in ("bin", "sbin", "lib", "lib32", "lib64"):
        folder = Path("/", name)
        if folder.is_symlink():
            options += ["--symlink", os.readlink(folder), str(folder)]
        elif folder.exists():
            options += ["--ro-bind", str(folder), str(folder)]
    options += ["--perms", "0755", "--dir", "/etc"]
    for name in _ETC:
        if os.path.exists(f"/etc/{name}"):
            options += ["--ro-bind", f"/etc/{name}", f"/etc/{name}"]
    home = str(Path(python_path()).parent.parent)
    return tuple(options if home.startswith("/usr") else [*options, *_parents(home), "--ro-bind", home, home])


def _parents(target: str) -> list[str]:
    """Folders above a mount that any uid may pass through (bubblewrap would make them private)."""
    above = [str(folder) for folder in reversed(Path(target).parents)][1:]
    return [word for folder in above for word in ("--perms", "0755", "--dir", folder)]


def _mounts(sandbox: Sandbox) -> list[str]:
    options: list[str] = []
    for mount in sandbox.mounts:
        options += [*_parents(mount.target), "--bind" if mount.writable else "--ro-bind", str(mount.source), mount.target]
    return [*options, "--remount-ro", "/", "--chdir", sandbox.workdir]

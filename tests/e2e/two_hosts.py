"""Two hosts on one machine: network namespaces with an address each, joined by a wire, and nothing else in common but the disk."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

TOOLS = ("unshare", "nsenter", "ip")
SLEEP = ("sleep", "3600")


@dataclass(frozen=True, slots=True)
class Host:
    """A network namespace, held by process `pid`."""

    pid: int
    address: str

    def inside(self, *argv: str) -> list[str]:
        """A command that runs on this host."""
        return ["nsenter", "-t", str(self.pid), "--user", "--net", "--preserve-credentials", "--", *argv]

    @contextmanager
    def started(self, *argv: str, cwd: Path, env: Mapping[str, str]) -> Iterator[subprocess.Popen[str]]:
        """A program on this host, that ends with the block."""
        with subprocess.Popen(
            self.inside(*argv),
            cwd=cwd,
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        ) as process:
            try:
                yield process
            finally:
                process.kill()

    def run(self, *argv: str, cwd: Path | None = None, env: Mapping[str, str] | None = None) -> str:
        done = subprocess.run(self.inside(*argv), cwd=cwd, env=env, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, f"{argv} ended with {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout


def impossible() -> str:
    """Why this machine cannot have two hosts, or nothing."""
    if missing := [tool for tool in TOOLS if shutil.which(tool) is None]:
        return f"{', '.join(missing)} is not installed (util-linux, iproute2)"
    made = subprocess.run(["unshare", "--user", "--map-root-user", "--net", "true"], capture_output=True, text=True, check=False)
    return f"this kernel lets no user make a network namespace: {made.stderr.strip()}" if made.returncode else ""


@contextmanager
def two_hosts() -> Iterator[tuple[Host, Host]]:
    """The two, until the end of the block."""
    with ExitStack() as stack:
        left = stack.enter_context(_held(["unshare", "--user", "--map-root-user", "--net", *SLEEP]))
        first = Host(left, "10.77.0.1")
        right = stack.enter_context(_held(first.inside("unshare", "--net", *SLEEP)))
        second = Host(right, "10.77.0.2")
        first.run("ip", "link", "add", "wire", "type", "veth", "peer", "name", "wire", "netns", str(right))
        for host in (first, second):
            host.run("ip", "address", "add", f"{host.address}/24", "dev", "wire")
            host.run("ip", "link", "set", "wire", "up")
            host.run("ip", "link", "set", "lo", "up")
        yield first, second


@contextmanager
def _held(argv: list[str]) -> Iterator[int]:
    """The process that `argv` becomes once it is in its namespaces."""
    before = os.readlink("/proc/self/ns/net")
    process = subprocess.Popen(argv)
    try:
        until = time.monotonic() + 20
        while not _is_asleep(process.pid, before):
            assert process.poll() is None and time.monotonic() < until, f"{argv} made no namespace"
            time.sleep(0.02)
        yield process.pid
    finally:
        process.kill()
        process.wait()


def _is_asleep(pid: int, before: str) -> bool:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip() == SLEEP[0] and os.readlink(f"/proc/{pid}/ns/net") != before
    except OSError:
        return False

"""What this machine can enforce, found out by trying it."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess

from gyre_engine.sandbox.isolation import Isolation, SandboxUnavailable
from gyre_engine.sandbox.policy import Sandbox, command_line, environment


@functools.cache
def sandbox_available() -> Isolation:
    """The strongest isolation that works here, by trying it. Raises SandboxUnavailable."""
    tried = []
    for isolation in (Isolation.ROOT, Isolation.USER_NAMESPACE):
        if isolation is Isolation.ROOT and (os.geteuid() != 0 or not shutil.which("setpriv")):
            continue
        probe = Sandbox(workdir="/")
        line = command_line(probe, ["/bin/sh", "-c", "cat /proc/self/status >/dev/null"], isolation, 65_534)
        with open(os.devnull, "r+b") as quiet:
            done = subprocess.run(line, env=environment(probe), stdin=quiet, capture_output=True, timeout=30, check=False)
        if done.returncode == 0:
            return isolation
        tried.append(f"{isolation.value}: {done.stderr.decode(errors='replace').strip()[:300]}")
    raise SandboxUnavailable(f"bubblewrap does not work here ({'; '.join(tried)})")

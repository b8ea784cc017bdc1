"""A workspace apart: bubblewrap around every harness and every verifier.

`policy` says what a sandboxed process may see and use, `isolation` how it is kept apart, `probe` finds out what this machine can
enforce, `process` starts, watches and ends one, `bridge` and `relay` are the only way out: to the model endpoint. Shared by the
runner and by scorers.
"""

from gyre_engine.sandbox.isolation import Isolation, SandboxUnavailable, find_bwrap
from gyre_engine.sandbox.policy import Limits, Mount, Sandbox, command_line, python_path
from gyre_engine.sandbox.probe import sandbox_available
from gyre_engine.sandbox.process import Exit, Running, spawn

__all__ = [
    "Exit",
    "Isolation",
    "Limits",
    "Mount",
    "Running",
    "Sandbox",
    "SandboxUnavailable",
    "command_line",
    "find_bwrap",
    "python_path",
    "sandbox_available",
    "spawn",
]

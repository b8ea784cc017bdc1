"""Entry of a light Python process: `python -m infra.supervisor.child PARENT_PID`; name, target and arguments on stdin (msgpack)."""

from __future__ import annotations

import os
import sys

import msgpack

from gyre_engine.lifeline import die_with_parent, name_process
from infra.supervisor.target import leave, run_target


def main() -> None:
    """Tie to the parent, read what to run, run it."""
    die_with_parent(int(sys.argv[1]))
    order = msgpack.unpackb(sys.stdin.buffer.read())
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    name_process(f"gyre:{order['name']}")
    leave(run_target(order["target"], order["args"]))


if __name__ == "__main__":
    main()

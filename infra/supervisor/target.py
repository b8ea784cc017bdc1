"""Runs a Python function by name as a process' main work."""

from __future__ import annotations

import importlib
import logging
import os
import sys
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from gyre_engine.dead_end import DEAD_END, DeadEnd


def resolve(target: str) -> Callable[..., object]:
    """The function that "module:function" names. Raises ValueError, ImportError or AttributeError."""
    module, colon, function = target.partition(":")
    if not colon or not function:
        raise ValueError(f"{target!r} is no target: write module:function")
    found: object = getattr(importlib.import_module(module), function)
    if not callable(found):
        raise ValueError(f"{target!r} is not a function")
    return found


def run_target(target: str, args: Mapping[str, Any]) -> int:
    """Call it; the exit status: what it returns (None: 0), what it exits with, 1 where it raises (the traceback goes to stderr),
    DEAD_END where another start would raise the same."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    try:
        result = resolve(target)(**args)
    except SystemExit as leaving:
        return _status(leaving.code)
    except BaseException as error:
        traceback.print_exc()
        return DEAD_END if isinstance(error, DeadEnd) else 1
    return _status(result)


def leave(status: int) -> None:
    """End the process now, with what was written flushed; no atexit handlers of a parent are run."""
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def child_environment(env: Mapping[str, str]) -> dict[str, str]:
    """What a child is given: this process' environment, one thread for numeric libraries, this code on the path, then `env`."""
    root = str(Path(__file__).resolve().parents[2])
    path = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH", "")]))
    threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    return {**os.environ, **threads, "PYTHONUNBUFFERED": "1", "PYTHONPATH": path, **env}


def _status(value: object) -> int:
    if value is None:
        return 0
    if isinstance(value, int):
        return value & 0xFF
    print(value, file=sys.stderr)
    return 1

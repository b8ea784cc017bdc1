"""How each command is called: an example a command, for its help and for whoever called it wrongly (exit status 2)."""

from __future__ import annotations

import sys
from typing import NoReturn

from typer.exceptions import TyperException

from gyre_engine.log.names import RUNS
from gyre_engine.log.port import TOPICS

MISUSE = 2
_BRACES = str.maketrans("", "", "{}")
READABLE = (*TOPICS, RUNS)
"""Topics that can be looked at: those of one run, and the one of all runs."""
EXAMPLES = {
    "run": "gyre run examples/quickstart/experiment.toml --set run.steps=5",
    "replay": "gyre replay latest --verify",
    "sql": 'gyre sql "SELECT step, reward_mean FROM reward_by_step"',
    "runs": "gyre runs",
    "tail": "gyre tail training --follow",
    "trees": "gyre trees latest",
    "score": "gyre score my_scorer:MyScorer --run latest",
    "eval": "gyre eval latest@20 --split test",
    "cells list": "gyre cells list --run latest",
    "cells add": "gyre cells add --count 2",
    "cells drain": "gyre cells drain cell-2",
    "cell start": "gyre cell start --run latest --bootstrap 10.0.0.1:9092 --host 10.0.0.2 --key cell-key",
    "doctor": "gyre doctor --tasks examples/quickstart/tasks/train",
    "up": "gyre up",
    "status": "gyre status",
    "stop": "gyre stop",
}


def example(command: str) -> str:
    """The last line of a command's help."""
    return f"Example: {EXAMPLES[command]}"


def misused(command: str, message: str) -> NoReturn:
    """Say what was missing or too much, how the command is called, and end with status 2."""
    print(f"gyre: {message}", file=sys.stderr)
    if command in EXAMPLES:
        print(f"example: {EXAMPLES[command]}", file=sys.stderr)
    print(f"all of it: gyre {command} --help".replace("  ", " "), file=sys.stderr)
    raise SystemExit(MISUSE)


def wrongly_called(error: TyperException) -> NoReturn:
    """The same for what the parser of arguments refused."""
    context, parameter = getattr(error, "ctx", None), getattr(error, "param", None)
    command = "" if context is None else context.command_path.partition(" ")[2]
    said = error.format_message().rstrip(".")
    meaning = getattr(parameter, "help", None)
    usage = f"\nusage: {context.get_usage().partition(':')[2].strip().translate(_BRACES)}" if context is not None else ""
    misused(command, said[:1].lower() + said[1:] + (f": {meaning.rstrip('.')}" if meaning else "") + usage)

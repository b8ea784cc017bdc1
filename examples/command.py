"""What the command of an example is made of: options that all have, the run, the replay. What it trains and tells is its own."""

from __future__ import annotations

import argparse

from rich.console import Console

from gyre_engine.config import Config
from infra.cli.attach import Attached
from infra.cli.errors import fail
from infra.cli.replaying import Verdict, in_words, replay_run
from infra.cli.running import Interrupted, Ran, quiet_logging, train
from infra.stack.layout import StackFolder


def given(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """The command line, with the options of every example; logging is as loud as it says."""
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--engine", choices=("native", "sglang"), default="native")
    parser.add_argument("--set", action="append", default=[], metavar="section.key=value")
    parser.add_argument("--verbose", action="store_true")
    said = parser.parse_args()
    quiet_logging(said.verbose)
    return said


def trained(config: Config, folder: StackFolder, console: Console) -> Ran:
    """The run, once it is over. An interrupted one ends the program."""
    try:
        return train(config, folder, console)
    except Interrupted as interrupted:
        fail(interrupted, interrupted.status)


def replayed(attached: Attached, console: Console) -> Verdict:
    """Train again from the log and say whether it is the same. Raises CommandError where it is not."""
    console.print("\nreplay: training again from the log and the initial weights alone", highlight=False)
    verdict = replay_run(attached, console, verify=True, until=0, overrides=[])
    if verdict.verified is not False:
        console.print(in_words(attached.info.run, verdict), highlight=False, soft_wrap=True)
    return verdict

"""`make quickstart`: writes the tasks, trains, replays, and says what was learnt.

The last line is one JSON object; everything before it is for a person.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

from rich.console import Console

from examples.quickstart.tasks import Split, write_tasks
from gyre_engine.config import Config, load_config
from infra.cli.attach import attach
from infra.cli.errors import fail, plainly
from infra.cli.replaying import Verdict, in_words, replay_run
from infra.cli.running import Interrupted, Ran, quiet_logging, train
from infra.stack.layout import StackFolder

HERE = Path(__file__).resolve().parent
COUNTS: Mapping[Split, int] = {"train": 256, "val": 32, "test": 128}
NEXT = (
    ("train again, with another seed", "make quickstart SEED=1"),
    ("train with your own config", ".venv/bin/gyre run examples/quickstart/experiment.toml --set run.steps=5"),
    ("ask the log", '.venv/bin/gyre sql "select * from reward_by_step"'),
    ("see what an agent did", ".venv/bin/gyre trees latest"),
    ("train it again from the log alone", ".venv/bin/gyre replay latest --verify"),
)


def configure(seed: int, engine: str, overrides: list[str]) -> Config:
    """The experiment with this seed and this engine."""
    return load_config(HERE / "experiment.toml", [f"run.seed={seed}", f'cells.engine="{engine}"', *overrides])


def ensure_tasks(folder: Path) -> int:
    """Write the tasks below `folder` unless these very ones stand there; how many there are. The folder appears whole."""
    sources = sorted(HERE.glob("*.py"))
    stamp = hashlib.sha256(b"".join(f.read_bytes() for f in sources) + repr(COUNTS).encode()).hexdigest()
    mark = folder / "made-from"
    if not mark.exists() or mark.read_text() != stamp:
        with tempfile.TemporaryDirectory(dir=folder.parent) as made:
            fresh = Path(made) / "tasks"
            write_tasks(fresh, 0, COUNTS)
            (fresh / "made-from").write_text(stamp)
            shutil.rmtree(folder, ignore_errors=True)
            fresh.rename(folder)
    return sum(COUNTS.values())


def summary(ran: Ran, verdict: Verdict) -> dict[str, object]:
    """The last line."""
    view = ran.view
    rewards = [e.mean for e in view.evaluations if e.split == "test"]
    return {
        "run": ran.run,
        "reward_before": round(rewards[0], 4) if rewards else None,
        "reward_after": round(rewards[-1], 4) if rewards else None,
        "steps": view.step,
        "executions": view.dispatched,
        "discarded": view.discarded,
        "role_switches": view.switches,
        "agent_errors": view.agent_errors,
        "seconds": round(ran.seconds, 1),
        "replay_verified": verdict.verified is True,
    }


def say_next(console: Console) -> None:
    """What to type now."""
    console.print("\nnext:")
    for what, command in NEXT:
        console.print(f"  {what:36}{command}", highlight=False, markup=False, soft_wrap=True)


@plainly
def main() -> None:
    """Write the tasks, train, replay, tell."""
    parser = argparse.ArgumentParser(description="Trains the quickstart's model and replays the run.")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--engine", choices=("native", "sglang"), default="native")
    parser.add_argument("--set", action="append", default=[], metavar="section.key=value")
    parser.add_argument("--verbose", action="store_true")
    given = parser.parse_args()
    quiet_logging(given.verbose)
    console, folder = Console(), StackFolder.here()
    console.print(f"{ensure_tasks(HERE / 'tasks')} programming tasks in {HERE / 'tasks'}", highlight=False)
    try:
        ran = train(configure(given.seed, given.engine, given.set), folder, console)
    except Interrupted:
        fail("interrupted: the run was stopped in order; what it logged is kept (`.venv/bin/gyre runs`)")
    console.print("\nreplay: training again from the log and the initial weights alone", highlight=False)
    with attach(ran.run, folder) as attached:
        verdict = replay_run(attached, console, verify=True, until=0, overrides=[])
        if verdict.verified is not False:
            console.print(in_words(ran.run, verdict), highlight=False, soft_wrap=True)
    say_next(console)
    print(json.dumps(summary(ran, verdict)), flush=True)


if __name__ == "__main__":
    main()

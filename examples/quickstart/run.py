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

from examples.command import given, replayed, trained
from examples.quickstart.tasks import Split, write_tasks
from gyre_engine.config import Config, load_config
from infra.cli.attach import attach
from infra.cli.errors import plainly
from infra.cli.replaying import Verdict
from infra.cli.running import Ran
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
    options = given(parser)
    console, folder = Console(), StackFolder.here()
    console.print(f"{ensure_tasks(HERE / 'tasks')} programming tasks in {HERE / 'tasks'}", highlight=False)
    ran = trained(configure(options.seed, options.engine, options.set), folder, console)
    with attach(ran.run, folder) as attached:
        verdict = replayed(attached, console)
    say_next(console)
    print(json.dumps(summary(ran, verdict)), flush=True)


if __name__ == "__main__":
    main()

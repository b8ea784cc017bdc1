"""A small experiment on real tasks, for end-to-end tests: the quickstart's model, a few groups, a few steps."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from examples.quickstart.tasks import write_tasks

ROOT = Path(__file__).resolve().parents[2]
EXPERIMENT = ROOT / "examples" / "quickstart" / "experiment.toml"


def write_experiment(folder: Path, **overrides: object) -> Path:
    """The quickstart's experiment, small, with tasks and model by absolute paths; overrides are `section__key=value`."""
    tasks = folder / "tasks"
    write_tasks(tasks, 0, {"train": 24, "val": 4, "test": 8})
    text = EXPERIMENT.read_text().replace('path = "model"', f'path = "{ROOT / "examples/quickstart/model"}"')
    text = text.replace('path = "tasks/', f'path = "{tasks}/')
    path = folder / "experiment.toml"
    path.write_text(text)
    return path


SMALL = (
    "run.steps=2", "batch.groups=3", "batch.group_size=4", "eval.before=''", "eval.after=''", "runner.max_concurrent=6",
    "batch.micro_step_tokens=512",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Gyre:
    """The command line in a folder of its own."""

    folder: Path

    def command(self, *arguments: str) -> list[str]:
        return [sys.executable, "-m", "infra.cli.main", *arguments]

    @property
    def environment(self) -> dict[str, str]:
        return {**os.environ, "GYRE_HOME": str(self.folder / ".gyre"), "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            self.command(*arguments), env=self.environment, cwd=self.folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True, start_new_session=True,
        )  # fmt: skip

    def __call__(self, *arguments: str, limit: float = 240.0) -> str:
        """Run a command to its end; its stdout. Fails the test with all output where it does."""
        done = subprocess.run(
            self.command(*arguments), env=self.environment, cwd=self.folder, capture_output=True, text=True, timeout=limit,
            check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"gyre {' '.join(arguments)} ended with {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def tail(self, topic: str) -> list[dict[str, object]]:
        return [json.loads(line) for line in self("tail", topic).splitlines()]

    def state(self) -> dict[str, object]:
        found: dict[str, object] = json.loads((self.folder / ".gyre" / "stack.json").read_text())
        return found


def settings(*more: str) -> list[str]:
    """`--set` for every small setting and those given."""
    return [word for setting in (*SMALL, *more) for word in ("--set", setting)]

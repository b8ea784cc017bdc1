"""`gyre score` and `gyre eval`: a scorer over a run's history, and a policy on a split."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path
from urllib.parse import urlsplit

from rich.console import Console

from consumers.scoring.loading import load_scorer
from consumers.scoring.process import score_history
from gyre_engine.config import Config, config_from_json, load_config
from gyre_engine.events.training import Checkpointed, EvaluationReported
from infra.cli.attach import Attached, attach
from infra.cli.errors import CommandError
from infra.cli.running import train
from infra.cli.tables import bring_up_to_date
from infra.stack import wiring
from infra.stack.layout import StackFolder


def score(attached: Attached, scorer: str, folder: StackFolder, *, follow: bool) -> str:
    """Score every finished execution of the run with MODULE:CLASS, for `gyre sql` to see; what was done, in words."""
    config = config_from_json(attached.info.started.config)
    scratch = folder.scratch / attached.info.run / f"score-{scorer.replace(':', '-')}"
    settings = wiring.scoring_of(config, scratch)
    loaded = load_scorer(scorer)
    with attached.log() as log:
        tally = score_history(log, loaded, settings, follow=follow)
        shutil.rmtree(scratch, ignore_errors=True)
        done = f"{loaded.name} {loaded.version}: {tally.scored} scored, {tally.failed} failed, {tally.skipped} scored before"
        try:
            bring_up_to_date(log, config, folder)
        except CommandError as error:
            raise CommandError(f"{done}\n{error}; the same `gyre score` again inserts it") from error
    return done


def evaluate(
    what: str, experiment: Path | None, split: str, tasks: int, samples: int, folder: StackFolder, console: Console
) -> EvaluationReported:
    """Evaluate RUN@STEP, or the model in a folder with the rest of EXPERIMENT; a run of its own without training."""
    config = _config(what, experiment, folder)
    if not any(d.split == split for d in config.data):
        there = ", ".join(sorted({d.split for d in config.data})) or "none"
        raise CommandError(f"there is no [[data]] source with split = {split!r} to evaluate on; there is: {there}")
    plan = dataclasses.replace(config.eval, before=split, after="", every=0, tasks=tasks, samples=samples)
    run = dataclasses.replace(config.run, steps=0, name="eval")
    ran = train(dataclasses.replace(config, eval=plan, run=run), folder, console)
    if not ran.view.evaluations:
        raise CommandError(f"{ran.run} ended without a report; its logs are in {folder.logs}")
    return ran.view.evaluations[-1]


def _config(what: str, experiment: Path | None, folder: StackFolder) -> Config:
    run, at, step = what.rpartition("@")
    if not at:
        return _of_folder(Path(what).resolve(), experiment)
    with attach(run, folder) as attached, attached.log() as log:
        config = config_from_json(attached.info.started.config)
        stored = {r.event.step: r.event.url for r in log.read("training") if isinstance(r.event, Checkpointed)}
    if not step.isdigit() or int(step) not in stored:
        raise CommandError(f"{run} has no checkpoint of step {step}; it has {sorted(stored)}")
    url = stored[int(step)]
    model = Path(urlsplit(url).path)
    if not model.is_dir():
        raise CommandError(
            f"the checkpoint of step {step} is not in a folder here ({url}): it was removed (run.checkpoint_keep), or it lies "
            "elsewhere; copy it to a local folder and evaluate that with --config"
        )
    return _with_model(config, model)


def _of_folder(model: Path, experiment: Path | None) -> Config:
    if not model.is_dir():
        raise CommandError(f"{model} is no folder with a model; a checkpoint is named RUN@STEP, e.g. latest@20")
    if experiment is None:
        raise CommandError("to evaluate a model folder, say with --config EXPERIMENT.toml how (data, harness, sampling)")
    return _with_model(load_config(experiment), model)


def _with_model(config: Config, folder: Path) -> Config:
    return dataclasses.replace(config, model=dataclasses.replace(config.model, path=str(folder)))

"""What must hold before a run starts: an error here costs seconds, an hour later it costs the run."""

from __future__ import annotations

import json
import os
from pathlib import Path

from consumers.scoring.loading import load_scorer
from gyre_engine.config import Config, ConfigError
from gyre_engine.sandbox import sandbox_available
from gyre_engine.tasks import load_catalog
from infra.stack import wiring


def check_before_start(config: Config) -> None:
    """Raises ConfigError (or the part's own error) naming the thing and the remedy."""
    _check_model(Path(config.model.path) if config.model.path else None)
    if not config.data:
        raise ConfigError('config error: no [[data]] source: give at least one folder of Harbor tasks with split = "train"')
    if not any(d.split == "train" for d in config.data):
        raise ConfigError('config error: no [[data]] source has split = "train"')
    load_catalog(wiring.sources(config))
    if config.scoring.scorer != "verifier":
        load_scorer(config.scoring.scorer)
    if config.runner.sandbox == "bubblewrap":
        sandbox_available()


def _check_model(model: Path | None) -> None:
    if model is None:
        raise ConfigError(
            "config error: model.path is empty: name a folder with config.json, model.safetensors and tokenizer.json"
        )
    if not model.is_dir():
        raise ConfigError(f"config error: model.path: {model} is no folder (relative paths are taken from the config's folder)")
    for name in ("config.json", "tokenizer.json"):
        if not os.access(model / name, os.R_OK):
            raise ConfigError(f"config error: model.path: {model / name} cannot be read")
    if not list(model.glob("*.safetensors")):
        raise ConfigError(f"config error: model.path: {model} holds no *.safetensors file")
    try:
        json.loads((model / "config.json").read_text(encoding="utf-8"))
    except ValueError as error:
        raise ConfigError(f"config error: {model / 'config.json'} is not JSON: {error}") from error

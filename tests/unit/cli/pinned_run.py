"""A run of this machine, as a log tells of it: its model and its reference policy lie in folders that tests may change."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from gyre_engine.config import Config, config_hash, to_json
from gyre_engine.events.log import RunStarted
from gyre_engine.log.runs import RunInfo
from gyre_engine.log.settings import KafkaSettings
from gyre_engine.training.fingerprint import fingerprint
from infra.cli.attach import Attached
from infra.stack.pinned import reference_hash
from infra.stack.versions import versions
from infra.stack.weights import config_files, image_hash


def model(folder: Path, weights: bytes) -> Path:
    """A folder of which nothing but its bytes is looked at."""
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(weights)
    (folder / "config.json").write_text('{"rope_theta": 10000.0}')
    return folder


def pinned_run(folder: Path, *, kl: float = 0.0, reference: str = "") -> Attached:
    """Run r-1 with the model in folder/model; `reference`: a folder beside it."""
    config = Config()
    path = model(folder / "model", b"first weights")
    name = str(model(folder / reference, b"fixed weights")) if reference else ""
    config = replace(
        config, model=replace(config.model, path=str(path)), loss=replace(config.loss, kl=kl, reference=name),
    )  # fmt: skip
    pinned, weights = to_json(config), image_hash(path)
    started = RunStarted(
        run="r-1", config=pinned, config_hash=config_hash(pinned), versions=versions(), partitions={},
        fingerprint=fingerprint(config.cells.threads, "cpu"), initial_weights=path.as_uri(), initial_weights_hash=weights,
        reference_hash=reference_hash(config, weights), model_files=config_files(path), topic_prefix="gyre.r-1",
    )  # fmt: skip
    return Attached(KafkaSettings(""), RunInfo("r-1", 1, started))

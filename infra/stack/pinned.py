"""The weights that a run was begun with, and whether they are still there: its model's, and those of its loss's reference policy."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from gyre_engine.config import Config, config_from_json
from gyre_engine.events.log import RunStarted
from infra.stack import wiring
from infra.stack.weights import config_files, image_hash


def reference_hash(config: Config, model_hash: str) -> str:
    """Of the reference policy's weights as they stand on disk; empty where none is looked at. `model_hash`: of model.path."""
    folder = wiring.reference(config)
    if not folder:
        return ""
    return model_hash if Path(folder) == Path(config.model.path) else image_hash(Path(folder))


def replaced(started: RunStarted, config: Config) -> Iterator[str]:
    """What `config` has in common with the run's start, and what is not on disk any more as it was then: each with the remedy.

    With other weights no step of the run would be the same. Older logs pin no reference: nothing is said of it then.
    """
    begun = config_from_json(started.config)
    model, reference = Path(begun.model.path), wiring.reference(begun)
    if config.model.path == begun.model.path:
        yield from _changed(f"model.path: {model}", model, started.initial_weights_hash, started, started.model_files)
    own = reference and Path(reference) != model
    if own and started.reference_hash and wiring.reference(config) == reference:
        yield from _changed(f"loss.reference: {reference}", Path(reference), started.reference_hash, started, {})


def _changed(named: str, folder: Path, pinned: str, started: RunStarted, files: dict[str, str]) -> Iterator[str]:
    if not list(folder.glob("*.safetensors")):
        yield f"{named} holds the weights no more that {started.run} began with: put them back"
        return
    if (found := image_hash(folder)) != pinned:
        yield (
            f"{named} holds other weights than {started.run} began with (sha256 {found[:16]}, the log has {pinned[:16]}): "
            "put those back, or begin a new run with these"
        )
    now = config_files(folder) if files else {}
    for name in sorted(name for name in files if now.get(name) != files[name]):
        yield f"{named} holds another {name} than {started.run} began with: put that back, or begin a new run with this one"

"""How the consumers of a stack are doing, as they last said: a small file each in the stack's folder, which `gyre status` shows."""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path

from gyre_engine.log.consumer import Health, Report

logger = logging.getLogger(__name__)


def reporter(folder: Path, process: str) -> Report:
    """Writes each report over the one before, whole or not at all. A full disk ends no consumer."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{process}.json"

    def write(health: Health) -> None:
        fresh = path.with_suffix(".new")
        try:
            fresh.write_text(json.dumps(health.as_fields()), encoding="utf-8")
            os.replace(fresh, path)
        except OSError as error:
            logger.warning("%s cannot say how it is doing: %s", process, error)

    return write


def reported(folder: Path) -> dict[str, Health]:
    """The last report of each process."""
    return {path.stem: Health(**json.loads(path.read_text(encoding="utf-8"))) for path in sorted(folder.glob("*.json"))}


def forget(folder: Path) -> None:
    """A new run begins: what the consumers of the last one said is over."""
    for path in folder.glob("*.json"):
        path.unlink()

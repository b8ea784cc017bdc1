"""What reporting takes from the config."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, slots=True)
class WandbSettings:
    """project: of the run there; mode: online or offline; config: shown beside it, without secrets. The key is the environment's."""

    project: str
    mode: str
    folder: Path
    config: Mapping[str, object] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True)
class ReportingSettings:
    """config_hash: of the run's pinned config. host, port: where Prometheus asks; port 0 is a free one. board: TensorBoard's folder of
    this run, None: no such files."""

    config_hash: str = ""
    host: str = "127.0.0.1"
    port: int = 0
    board: Path | None = None
    wandb: WandbSettings | None = None

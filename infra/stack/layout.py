"""Where a stack keeps its things: one folder, `.gyre` below the folder in which `gyre` was called (or $GYRE_HOME)."""

from __future__ import annotations

import os
import secrets
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class StackFolder:
    """The paths of one stack."""

    root: Path

    @classmethod
    def here(cls) -> StackFolder:
        """The stack of the current folder."""
        return cls(Path(os.environ.get("GYRE_HOME", ".gyre")).resolve())

    @property
    def kafka(self) -> Path:
        return self.root / "kafka"

    @property
    def clickhouse(self) -> Path:
        return self.root / "clickhouse"

    @property
    def logs(self) -> Path:
        return self.root / "logs"

    @property
    def scratch(self) -> Path:
        return self.root / "scratch"

    @property
    def launch(self) -> Path:
        """What the processes of the present run are told (no secrets)."""
        return self.root / "launch.json"

    def store(self, configured: str) -> str:
        """fsspec URL of work products and checkpoints."""
        return configured or (self.root / "store").as_uri()

    def secret(self) -> bytes:
        """The stack's secret, made on first use, readable by its owner alone."""
        path = self.root / "secret"
        if not path.exists():
            self.root.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(descriptor, "wb") as file:
                file.write(secrets.token_hex(32).encode())
        return path.read_bytes()

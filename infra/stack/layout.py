"""Where a stack keeps its things: one folder, `.gyre` below the folder in which `gyre` was called (or $GYRE_HOME)."""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from gyre_engine.config import ConfigError

SECRET_BYTES = 64


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
    def boards(self) -> Path:
        """TensorBoard's files, a folder a run: `tensorboard --logdir` shows them side by side."""
        return self.root / "tensorboard"

    @property
    def wandb(self) -> Path:
        """What Weights & Biases keeps of runs."""
        return self.root / "wandb"

    @property
    def logs(self) -> Path:
        return self.root / "logs"

    @property
    def health(self) -> Path:
        """What the consumers of the present run last said of themselves."""
        return self.root / "health"

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
            self._make_secret(path)
        secret = path.read_bytes()
        if len(secret) < SECRET_BYTES:
            raise ConfigError(f"{path} is cut off: remove it, and nothing that was started with it may run any more")
        return secret

    @property
    def has_runs(self) -> bool:
        """Whether runs began here: then there is a secret."""
        return (self.root / "secret").exists()

    @property
    def cell_key_file(self) -> Path:
        """What `gyre cell start` on another host needs a copy of."""
        return self.root / "cell-key"

    def cell_key(self) -> bytes:
        """With which the cells of this stack's runs open each other's memory: derived from the secret, so that it opens nothing else;
        on a host that joined, the copy that it was given.
        """
        if not self.cell_key_file.exists():
            self.keep_cell_key(hmac.new(self.secret(), b"cells", hashlib.sha256).hexdigest().encode())
        return self.cell_key_file.read_bytes().strip()

    def keep_cell_key(self, key: bytes) -> None:
        """Write it, readable by its owner alone."""
        self._write_private(self.cell_key_file, key + b"\n")

    def private(self) -> dict[str, str]:
        """What a run was started with and only its owner may read: librdkafka's settings, a ClickHouse URL with its password."""
        path = self.root / "private.json"
        found: dict[str, str] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        return found

    def keep_private(self, settings: Mapping[str, str]) -> None:
        """Write what `private` gives, readable by its owner alone."""
        self._write_private(self.root / "private.json", json.dumps(dict(settings)).encode())

    def librdkafka(self) -> dict[str, str]:
        """librdkafka's settings, passwords among them."""
        return {k.removeprefix("kafka."): v for k, v in self.private().items() if k.startswith("kafka.")}

    def password(self) -> str:
        """Of the embedded ClickHouse's writer: derived, so that it opens nothing else."""
        return hmac.new(self.secret(), b"clickhouse writer", hashlib.sha256).hexdigest()

    def _make_secret(self, path: Path) -> None:
        # Written whole before it has its name, so that a killed process leaves no short one.
        part = path.with_suffix(f".{os.getpid()}.part")
        self._write_private(part, secrets.token_hex(SECRET_BYTES // 2).encode())
        with contextlib.suppress(FileExistsError):
            os.link(part, path)
        part.unlink()

    def _write_private(self, path: Path, content: bytes) -> None:
        self.root.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())

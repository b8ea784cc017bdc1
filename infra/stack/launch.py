"""What the processes of a run are told: one JSON file in the stack's folder, without secrets.

A process is started with nothing but the folder and its own name; what is secret (the stack's key, librdkafka passwords) is read
from files that only their owner can read.
"""

from __future__ import annotations

import dataclasses
import json
import os
from dataclasses import dataclass
from pathlib import Path

from gyre_engine.config import Config, config_from_json, to_json
from gyre_engine.log.settings import KafkaSettings
from infra.stack.layout import StackFolder


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """A run on this stack: its pinned config and the addresses of its parts."""

    run: str
    config: str
    """JSON, as in RunStarted."""
    bootstrap_servers: str
    prefix: str
    partitions: int
    replication: int
    proxy_url: str
    engine_urls: tuple[str, ...]
    clickhouse_url: str
    """Empty: analytics is off."""

    @property
    def settings(self) -> Config:
        return config_from_json(self.config)

    def save(self, folder: StackFolder, librdkafka: dict[str, str]) -> None:
        """Write it, and the librdkafka settings beside it for its owner alone."""
        folder.root.mkdir(parents=True, exist_ok=True)
        folder.launch.write_text(json.dumps(dataclasses.asdict(self), indent=1), encoding="utf-8")
        _write_private(folder.root / "librdkafka.json", json.dumps(librdkafka))

    @classmethod
    def load(cls, folder: StackFolder) -> Launch:
        fields = json.loads(folder.launch.read_text(encoding="utf-8"))
        return cls(**{**fields, "engine_urls": tuple(fields["engine_urls"])})

    def kafka(self, folder: StackFolder) -> KafkaSettings:
        """How this run's log is reached."""
        path = folder.root / "librdkafka.json"
        extra = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        return KafkaSettings(
            bootstrap_servers=self.bootstrap_servers, prefix=self.prefix, partitions=self.partitions,
            replication=self.replication, delivery_timeout_s=self.settings.kafka.delivery_timeout_s, extra=extra,
        )  # fmt: skip


def launch_config(config: Config) -> str:
    """The config as JSON, secrets masked: what a launch and RunStarted carry."""
    return to_json(config)


def _write_private(path: Path, text: str) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)

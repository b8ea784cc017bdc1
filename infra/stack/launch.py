"""What the processes of a run are told: one JSON file in the stack's folder, without secrets.

A process is started with nothing but the folder and its own name; what is secret (the stack's key, librdkafka passwords) is read
from files that only their owner can read.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass

from gyre_engine.config import Config, config_from_json, config_hash
from gyre_engine.log.settings import KafkaSettings
from infra.stack.kafka import kafka_settings
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
    def config_hash(self) -> str:
        """Of the pinned config: part of every derived id."""
        return config_hash(self.config)

    @property
    def settings(self) -> Config:
        return config_from_json(self.config)

    def save(self, folder: StackFolder, config: Config) -> None:
        """Write it, and beside it, for its owner alone, what `config` has of secrets."""
        folder.root.mkdir(parents=True, exist_ok=True)
        folder.launch.write_text(json.dumps(dataclasses.asdict(self), indent=1), encoding="utf-8")
        secret = {f"kafka.{name}": value for name, value in config.kafka.librdkafka.items()}
        folder.keep_private(secret | ({"clickhouse.url": config.clickhouse.url} if config.clickhouse.url else {}))

    @classmethod
    def load(cls, folder: StackFolder) -> Launch:
        fields = json.loads(folder.launch.read_text(encoding="utf-8"))
        return cls(**{**fields, "engine_urls": tuple(fields["engine_urls"])})

    def kafka(self, folder: StackFolder) -> KafkaSettings:
        """How this run's log is reached."""
        own = dataclasses.replace(self.settings.kafka, prefix=self.prefix, partitions=self.partitions)
        return kafka_settings(own, self.bootstrap_servers, self.replication, folder.librdkafka())

"""What the processes of a run are told: one JSON file in the stack's folder, without secrets.

A process is started with nothing but the folder and its own name; what is secret (the stack's key, librdkafka passwords) is read
from files that only their owner can read.
"""

from __future__ import annotations

import dataclasses
import json
import os
from dataclasses import dataclass

from gyre_engine.config import Config, config_from_json, config_hash
from gyre_engine.log.settings import KafkaSettings
from infra.stack.kafka import kafka_settings
from infra.stack.layout import StackFolder


@dataclass(frozen=True, slots=True)
class CellPlace:
    """A cell of this host: its name, its place in the fixed order (0 is the core), where its engine is reached."""

    name: str
    position: int
    engine_url: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """A run on this stack: its pinned config, the addresses of its parts and the cells that this host keeps.

    host:          address at which this host's engines and memory are reached
    model:         folder with the weights that engines start with, of version `model_version`; empty: the config's
    """

    run: str
    config: str
    """JSON, as in RunStarted."""
    bootstrap_servers: str
    prefix: str
    partitions: int
    replication: int
    proxy_url: str
    cells: tuple[CellPlace, ...]
    clickhouse_url: str
    """Empty: analytics is off."""
    metrics_url: str = ""
    """Empty: steps are not reported."""
    host: str = "127.0.0.1"
    model: str = ""
    model_version: int = 0

    @property
    def config_hash(self) -> str:
        """Of the pinned config: part of every derived id."""
        return config_hash(self.config)

    @property
    def settings(self) -> Config:
        return config_from_json(self.config)

    @property
    def model_path(self) -> str:
        """Folder of the model that engines start with."""
        return self.model or self.settings.model.path

    def cell(self, name: str) -> CellPlace:
        """One of this host's cells. Raises KeyError."""
        return {place.name: place for place in self.cells}[name]

    def with_cell(self, place: CellPlace) -> Launch:
        """With one cell more."""
        return dataclasses.replace(self, cells=(*self.cells, place))

    def save(self, folder: StackFolder) -> None:
        """Write it, whole or not at all: processes that start read it."""
        folder.root.mkdir(parents=True, exist_ok=True)
        part = folder.launch.with_suffix(".part")
        part.write_text(json.dumps(dataclasses.asdict(self), indent=1), encoding="utf-8")
        os.replace(part, folder.launch)

    @classmethod
    def load(cls, folder: StackFolder) -> Launch:
        fields = json.loads(folder.launch.read_text(encoding="utf-8"))
        return cls(**{**fields, "cells": tuple(CellPlace(**place) for place in fields["cells"])})

    def kafka(self, folder: StackFolder) -> KafkaSettings:
        """How this run's log is reached."""
        own = dataclasses.replace(self.settings.kafka, prefix=self.prefix, partitions=self.partitions)
        return kafka_settings(own, self.bootstrap_servers, self.replication, folder.librdkafka())


def keep_secrets(folder: StackFolder, config: Config) -> None:
    """Write, for its owner alone, what `config` has of secrets."""
    secret = {f"kafka.{name}": value for name, value in config.kafka.librdkafka.items()}
    folder.keep_private(secret | ({"clickhouse.url": config.clickhouse.url} if config.clickhouse.url else {}))

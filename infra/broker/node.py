"""The files and the command line of one KRaft node: broker and controller in one JVM, bound to one address."""

from __future__ import annotations

import base64
import os
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

_LOGGING = """\
Configuration:
  Appenders:
    Console:
      name: STDOUT
      PatternLayout: {pattern: '[%d] %p %m (%c)%n'}
  Loggers:
    Root: {level: WARN, AppenderRef: [{ref: STDOUT}]}
"""


@dataclass(frozen=True, slots=True)
class Node:
    """Where a node keeps its data, and where it listens."""

    folder: Path
    host: str
    port: int
    controller_port: int
    message_max_bytes: int

    @property
    def properties_file(self) -> Path:
        return self.folder / "server.properties"

    @property
    def formatted(self) -> bool:
        """Whether the data folder has been given its cluster id already."""
        return (self.folder / "data" / "meta.properties").exists()

    def write(self) -> None:
        """Write the node's configuration (data are left alone)."""
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "log4j2.yaml").write_text(_LOGGING)
        self.properties_file.write_text("".join(f"{key}={value}\n" for key, value in self.properties().items()))

    def properties(self) -> dict[str, str]:
        """server.properties: small buffers, nothing auto-created, internal topics of one partition and one replica."""
        client, controller = f"PLAINTEXT://{self.host}:{self.port}", f"CONTROLLER://{self.host}:{self.controller_port}"
        return {
            "process.roles": "broker,controller",
            "node.id": "1",
            "controller.quorum.bootstrap.servers": f"{self.host}:{self.controller_port}",
            "listeners": f"{client},{controller}",
            "advertised.listeners": f"{client},{controller}",
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
            "log.dirs": str(self.folder / "data"),
            "auto.create.topics.enable": "false",
            "offsets.topic.replication.factor": "1",
            "offsets.topic.num.partitions": "1",
            "offsets.retention.minutes": str(10 * 365 * 24 * 60),
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.num.partitions": "1",
            "transaction.state.log.min.isr": "1",
            "share.coordinator.state.topic.replication.factor": "1",
            "share.coordinator.state.topic.min.isr": "1",
            "group.initial.rebalance.delay.ms": "0",
            "num.network.threads": "2",
            "num.io.threads": "2",
            "log.index.size.max.bytes": "1048576",
            "log.cleaner.dedupe.buffer.size": "16777216",
            "message.max.bytes": str(self.message_max_bytes),
            "replica.fetch.max.bytes": str(self.message_max_bytes),
        }

    def command(self, java: str, jars: Sequence[Path]) -> list[str]:
        """The JVM's command line up to the main class: a small heap, one garbage collector thread, a quick start."""
        options = ["-Xms128m", "-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Djava.awt.headless=true"]
        logging = f"-Dlog4j2.configurationFile={self.folder / 'log4j2.yaml'}"
        return [java, *options, logging, "-cp", os.pathsep.join(map(str, jars))]


def new_cluster_id() -> str:
    """A random cluster id that the storage tool does not take for an option (it must not begin with "-")."""
    text = base64.urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=").decode()
    return "A" + text[1:] if text.startswith("-") else text

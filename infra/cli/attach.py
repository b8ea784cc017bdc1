"""Commands that read: they attach to the stack that runs in this folder, or start its broker for as long as they need it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from gyre_engine.config.schema import KafkaConfig
from gyre_engine.log.kafka import KafkaLog
from gyre_engine.log.runs import RunInfo, find_run
from gyre_engine.log.settings import KafkaSettings
from infra.broker.broker import Broker, BrokerSettings
from infra.cli.errors import CommandError
from infra.stack.kafka import kafka_settings
from infra.stack.launch import Launch
from infra.stack.layout import StackFolder
from infra.supervisor.state import StackLock, StackRunning, read_state


@dataclass(frozen=True, slots=True)
class Attached:
    """A log that can be read, and the run that was asked for."""

    settings: KafkaSettings
    info: RunInfo

    @contextmanager
    def log(self) -> Iterator[KafkaLog]:
        log = KafkaLog(self.settings, self.info.run)
        try:
            yield log
        finally:
            log.close()


@contextmanager
def kafka(folder: StackFolder) -> Iterator[KafkaSettings]:
    """How this folder's log is reached: the running stack's, the broker that its last run named, or its own, started for now."""
    state = read_state(folder.root)
    launch = Launch.load(folder) if folder.launch.exists() else None
    if state is not None and state.serving and "bootstrap_servers" in state.facts:
        yield _settings(folder, str(state.facts["bootstrap_servers"]), str(state.facts["prefix"]))
    elif launch is not None and launch.settings.kafka.bootstrap_servers:
        yield launch.kafka(folder)
    elif folder.kafka.exists():
        lock = _lock(folder)
        try:
            with Broker(BrokerSettings(folder.kafka)) as broker:
                yield _settings(folder, broker.bootstrap_servers, launch.prefix if launch else "gyre")
        finally:
            lock.release()
    else:
        raise CommandError(f"{folder.root} holds no run: start one with `gyre run EXPERIMENT.toml`, or go to the folder of one")


def _lock(folder: StackFolder) -> StackLock:
    try:
        return StackLock(folder.root)
    except StackRunning as error:
        raise CommandError(
            f"another gyre reads the log in {folder.root} just now (a replay, or a run that is starting or ending): "
            "try again when it is done"
        ) from error


def _settings(folder: StackFolder, servers: str, prefix: str) -> KafkaSettings:
    return kafka_settings(dataclasses.replace(KafkaConfig(), prefix=prefix), servers, 1, folder.librdkafka())


@contextmanager
def attach_running() -> Iterator[Attached]:
    """The run that goes on in this folder. Raises CommandError where none does."""
    folder = StackFolder.here()
    state = read_state(folder.root)
    if state is None or not state.serving or not state.facts.get("run"):
        raise CommandError(f"no run goes on in {folder.root}: `gyre runs` lists those that were here")
    with attach(str(state.facts["run"]), folder) as attached:
        yield attached


@contextmanager
def attach(run: str, folder: StackFolder | None = None) -> Iterator[Attached]:
    """The named run (or `latest`) on this folder's log."""
    with kafka(folder or StackFolder.here()) as settings:
        log = KafkaLog(settings, "-")
        try:
            info = find_run(log, run)
        finally:
            log.close()
        del log  # its client's threads end with it
        yield Attached(settings, info)

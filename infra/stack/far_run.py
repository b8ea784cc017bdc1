"""A run elsewhere, as its log has it, and whether a cell of this host can be of it.

reads     runs, cells, commands, training
promises  before anything starts it is known that the run goes on, that this host computes the same, and that the cell's name is free
"""

from __future__ import annotations

from dataclasses import dataclass, field

from gyre_engine.config import Config, config_from_json
from gyre_engine.events.training import Published
from gyre_engine.log.kafka import KafkaLog
from gyre_engine.log.runs import RunInfo, find_run
from gyre_engine.log.settings import KafkaSettings
from gyre_engine.scheduling.cells import Fleet
from gyre_engine.training.fingerprint import differences, fingerprint, same_numerics
from gyre_engine.training.ledger.fold import Ledger, apply
from infra.stack.cells import next_place, own_cells, read_fleet
from infra.stack.versions import versions


class CannotJoin(RuntimeError):
    """This host's cell cannot be of the run; the text says why and what would help."""


@dataclass(frozen=True, slots=True)
class FarCellSettings:
    """name: of the cell; host: this host's address, as the run's hosts reach it; other_hardware: the last bits may differ.

    key: what opens the run's memory; empty: the one that this folder has been given before
    """

    run: str
    name: str
    host: str
    kafka: KafkaSettings
    other_hardware: bool = False
    key: bytes = field(default=b"", repr=False)


@dataclass(slots=True)
class FarRun:
    """What the log says of it now."""

    info: RunInfo
    fleet: Fleet
    published: Published | None
    own: frozenset[str] = frozenset()
    """Cells that the run's own host keeps."""

    @classmethod
    def read(cls, log: KafkaLog, run: str) -> FarRun:
        """Fold cells, commands and the ledger as they stand now. Raises NoSuchRun."""
        info, ledger = find_run(log, run), Ledger()
        for record in log.read("training"):
            ledger = apply(ledger, record.event)
        own = own_cells(log, config_from_json(info.started.config))
        return cls(info, read_fleet(log), ledger.published, own)

    @property
    def config(self) -> Config:
        return config_from_json(self.info.started.config)

    def position(self, name: str) -> int:
        """The place that the cell had, else that after all others."""
        before = self.fleet.cells.get(name)
        return next_place(self.fleet, self.config) if before is None else before.position

    def require_open(self, settings: FarCellSettings) -> None:
        """Raises CannotJoin where the run is over, the name is taken, or this host would compute something else."""
        run, own = self.info.run, self.config
        if self.info.ended is not None:
            raise CannotJoin(f"{run} is over ({self.info.ended.outcome}): cells join runs that go on")
        if settings.name in self.own:
            raise CannotJoin(f"{settings.name} is a cell of the run's own host: give another --name")
        if self.fleet.leaves(settings.name):
            raise CannotJoin(f"a cell named {settings.name} has left {run}: give another --name")
        if settings.name in self.fleet.cells and not self.fleet.lost(settings.name):
            silence = f"{own.schedule.silence_s:.0f} s"
            raise CannotJoin(
                f"a cell named {settings.name} is in {run}: give another --name, or, if it is this host's that died, wait {silence}"
            )
        started = self.info.started
        if other := differences(started.versions, versions()):
            raise CannotJoin(f"{run} cannot have a cell with other versions: {'; '.join(other)}; install those of the run")
        unlike = differences(started.fingerprint, fingerprint(own.cells.threads, own.training.device))
        if not same_numerics(started.fingerprint):
            raise CannotJoin(f"{run} cannot have a cell of another Gyre: {'; '.join(unlike)}; install that of the run")
        if unlike and not settings.other_hardware:
            raise CannotJoin(
                f"a cell here would compute {run} differently in the last bits: {'; '.join(unlike)}; "
                "--other-hardware joins all the same, but a replay on one machine will then not agree"
            )

    def require_reachable(self, host: str) -> None:
        """Raises CannotJoin where the run's cells are reached on their own host alone."""
        if _loopback(self.config.cells.host) and not _loopback(host):
            raise CannotJoin(
                f"the cells of {self.info.run} are reached at {self.config.cells.host}, on their own host alone: start the run with "
                "--set cells.host=ADDRESS (and kafka.host, where the broker is the embedded one)"
            )


def _loopback(host: str) -> bool:
    return host.startswith("127.") or host in ("localhost", "::1")

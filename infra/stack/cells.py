"""The cells that this host keeps for a run: their processes, those that somebody asks for later, and the end of those that leave.

reads     cells (cell-wanted, and who has left)
promises  a cell that was asked for is started once, also where the run is resumed; of one that has left no process stays
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from gyre_engine.config import Config
from gyre_engine.events import Event
from gyre_engine.events.cells import CellStarted, CellWanted, RoleChanged
from gyre_engine.log import Follower, Log
from gyre_engine.log.catching_up import catch_up
from gyre_engine.scheduling.cells import Fleet, observe
from infra.sglang.launch import Launch as SGLangLaunch
from infra.sglang.launch import MovingKv, ended_together, sglang_on_cpu, sglang_on_gpu
from infra.stack.launch import CellPlace, Launch
from infra.stack.layout import StackFolder
from infra.stack.ports import free_ports
from infra.stack.wiring import cell_name, positions
from infra.supervisor.spec import ProcessSpec, RestartPolicy, State
from infra.supervisor.supervisor import Supervisor

ENTRIES = "infra.stack.entries"
ACTING = 1
"""Stage of a stop at which cells end (infra.stack.processes has the others)."""
ENGINES, TRAINERS = "preloader-engines", "preloader-trainers"
PRELOADERS = {
    ENGINES: ("gyre_engine.sampling.native", "producers.cells.engine_server"),
    TRAINERS: ("gyre_engine.training.model.megatron", "gyre_engine.training.optimizer.adamw"),
}
"""Engines need torch alone and are up in half of the time that Megatron takes: agents begin while trainers still load."""
PATIENT = RestartPolicy(limit=8, window_seconds=120.0)
PARTS = ("engine", "trainer")
"""What ends once the agent has ended."""


def cell_processes(launch: Launch, folder: StackFolder, place: CellPlace) -> list[ProcessSpec]:
    """A cell's engine, trainer and agent; the standalone pool has no trainers. An agent ends by itself once its cell has left."""
    root, name = str(folder.root), place.name
    args: dict[str, object] = {"folder": root, "cell": name}
    trainer = ProcessSpec(
        f"{name}-trainer", target=f"{ENTRIES}:trainer", args=args, heavy=True, parent=TRAINERS, stage=ACTING, restart=PATIENT
    )
    return [
        _engine(launch, folder, place, args),
        *([trainer] if place.position >= 0 else []),
        ProcessSpec(f"{name}-agent", target=f"{ENTRIES}:cell_agent", args=args, stage=ACTING, restart=PATIENT, ends=True),
    ]


def _engine(launch: Launch, folder: StackFolder, place: CellPlace, args: dict[str, object]) -> ProcessSpec:
    config, name = launch.settings, f"{place.name}-engine"
    if config.cells.engine == "sglang":
        command = _sglang(launch, folder, place)
        argv = ended_together((*command.argv, *config.cells.engine_args))
        return ProcessSpec(name, argv=argv, env=command.env, stage=ACTING, restart=PATIENT)
    target = f"{ENTRIES}:engine"
    if config.cells.engine == "scripted":
        return ProcessSpec(name, target=target, args=args, stage=ACTING, restart=PATIENT)
    return ProcessSpec(name, target=target, args=args, heavy=True, parent=ENGINES, stage=ACTING, restart=PATIENT)


def _sglang(launch: Launch, folder: StackFolder, place: CellPlace) -> SGLangLaunch:
    cells, at, model, version = launch.settings.cells, urlsplit(place.engine_url), launch.model_path, str(launch.model_version)
    host, port = at.hostname or "127.0.0.1", at.port or 0
    if cells.sglang_python:
        return sglang_on_gpu(
            cells.sglang_python, model, version, host=host, port=port, environment=os.environ, kv_capacity=cells.kv_tokens,
            max_batch=cells.capacity, kv=_moving(launch, folder, place) if cells.engine_kv == "hicache" else None,
            record_routing=cells.record_routing,
        )  # fmt: skip
    own = folder.scratch / launch.run / place.name / "server"
    return sglang_on_cpu(
        model, version, host=host, port=port, environment=os.environ, kv_capacity=cells.kv_tokens, max_batch=cells.capacity,
        scratch=str(own), record_routing=cells.record_routing,
    )  # fmt: skip


def _moving(launch: Launch, folder: StackFolder, place: CellPlace) -> MovingKv:
    folder.cell_key()  # there, before the engine looks for it
    scratch = folder.scratch / launch.run / place.name / "kv"
    config = launch.settings
    return MovingKv(
        str(scratch), config.cells.engine_kv_mb << 20, str(folder.cell_key_file), transfer=config.transfer.kind, host=launch.host
    )


def read_fleet(log: Log) -> Fleet:
    """The cells as the log has them now."""
    fleet = Fleet()
    for topic in ("cells", "commands"):
        for record in log.read(topic):
            fleet = observe(fleet, record.event)
    return fleet


def own_cells(log: Log, config: Config) -> frozenset[str]:
    """Those that the run's own host keeps: that it begins with, and that were added."""
    wanted = (record.event.cell for record in log.read("cells") if isinstance(record.event, CellWanted))
    return frozenset((*map(cell_name, positions(config)), *wanted))


def next_place(fleet: Fleet, config: Config) -> int:
    """In the fixed order, behind all cells that the run begins with or has had since."""
    return max(config.cells.count, 1 + max((state.position for state in fleet.cells.values()), default=0))


@dataclass(slots=True)
class Wanted:
    """The cells that somebody asked for and that have not left: a fold of `cells`."""

    asked: dict[str, int] = field(default_factory=dict)
    """Cell -> its place in the fixed order."""
    fleet: Fleet = field(default_factory=Fleet)

    def see(self, event: Event) -> None:
        """Take one event into account."""
        if isinstance(event, CellWanted):
            self.asked.setdefault(event.cell, event.position)
        elif isinstance(event, CellStarted | RoleChanged):
            self.fleet = observe(self.fleet, event)

    def still(self) -> dict[str, int]:
        """Those that should run."""
        return {cell: position for cell, position in self.asked.items() if not self.fleet.leaves(cell)}


@dataclass(slots=True)
class CellKeeper:
    """Tends the cells of a run on its own host. `tend` looks once and never waits."""

    launch: Launch
    folder: StackFolder
    supervisor: Supervisor
    follower: Follower
    wanted: Wanted = field(default_factory=Wanted)

    def catch_up(self) -> None:
        """Read what was asked for before: a run that is resumed has the cells that it had."""
        catch_up(self.follower, lambda record: self.wanted.see(record.event), "who keeps the cells")

    def tend(self) -> None:
        """Start what was asked for, end what is left of who has left."""
        for record in self.follower.poll(0.0):
            self.wanted.see(record.event)
        known = {place.name for place in self.launch.cells}
        for cell, position in self.wanted.still().items():
            if cell not in known:
                self._start(cell, position)
        end_those_that_left(self.supervisor)

    def _start(self, cell: str, position: int) -> None:
        host = self.launch.host
        place = CellPlace(cell, position, f"http://{host}:{free_ports(1, host)[0]}")
        self.launch = self.launch.with_cell(place)
        self.launch.save(self.folder)
        self.supervisor.start(*cell_processes(self.launch, self.folder, place))


def end_those_that_left(supervisor: Supervisor) -> None:
    """End engine and trainer of each cell whose agent has ended by itself."""
    states = {status.name: status.state for status in supervisor.statuses()}
    for name, state in states.items():
        cell, _, part = name.rpartition("-")
        if part == "agent" and state is State.DONE:
            for other in (f"{cell}-{part}" for part in PARTS):
                if states.get(other) in (State.RUNNING, State.WAITING):
                    supervisor.end(other)


def has_left(supervisor: Supervisor, cell: str) -> bool:
    """Whether the agent of a cell has ended by itself."""
    return any(status.name == f"{cell}-agent" and status.state is State.DONE for status in supervisor.statuses())

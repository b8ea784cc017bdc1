"""`gyre cell start` and `gyre cells`: a cell of this host in a run elsewhere; look at a run's cells, add one, let one go.

reads     cells, commands
writes    cells: cell-wanted, leave-wanted
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import re
import secrets
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path

from rich.console import Console

from gyre_engine.config import Config
from gyre_engine.config.schema import KafkaConfig
from gyre_engine.events.cells import CellRole, CellWanted, LeaveWanted, LifeState
from gyre_engine.log.kafka import KafkaLog
from gyre_engine.log.port import Log
from gyre_engine.log.runs import RunInfo
from gyre_engine.log.settings import KafkaSettings
from gyre_engine.scheduling.cells import CellState, Fleet, observe
from gyre_engine.scheduling.life import LifeLimits
from infra.cli.errors import CommandError, nearest
from infra.cli.running import STATED
from infra.stack.cells import next_place, own_cells, read_fleet
from infra.stack.far_cell import FarCell, leave_on_signals
from infra.stack.far_run import CannotJoin, FarCellSettings
from infra.stack.kafka import kafka_settings
from infra.stack.layout import StackFolder
from infra.stack.wiring import cell_name
from infra.supervisor.spec import SupervisorEvent

COLUMNS = ("cell", "position", "role", "state", "version", "capacity", "running", "engine")
_NAME, _CELL_KEY = re.compile(r"[A-Za-z0-9._-]{1,80}"), re.compile(rb"[0-9a-f]{64}")


@dataclasses.dataclass(frozen=True, slots=True)
class Way:
    """How a log elsewhere is reached. client: a file of librdkafka settings, NAME=VALUE a line."""

    bootstrap: str
    prefix: str
    client: Path | None = None

    def settings(self) -> KafkaSettings:
        """As the log's clients take it. Raises CommandError."""
        extra = _properties(self.client) if self.client else {}
        return kafka_settings(dataclasses.replace(KafkaConfig(), prefix=self.prefix), self.bootstrap, 1, extra)


def _properties(path: Path) -> dict[str, str]:
    lines = [line.strip() for line in path.read_text(encoding="utf-8").splitlines()]
    found: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        name, equals, value = line.partition("=")
        if line and not line.startswith("#"):
            if not equals:
                raise CommandError(f"{path}, line {number}: {line!r} is no setting: write NAME=VALUE, as librdkafka calls it")
            found[name.strip()] = value.strip()
    return found


def start_cell(way: Way, run: str, *, host: str, name: str, key: Path | None, other_hardware: bool, folder: StackFolder) -> str:
    """One cell here until it has left or its run is over; how it ended. Raises CommandError and what starting raises."""
    settings = FarCellSettings(run, _name(name), host, way.settings(), other_hardware, _key(folder, key))
    cell = FarCell(settings, folder, lambda text: print(text, flush=True), _told)
    leave_on_signals(cell)
    try:
        cell.start()
        return cell.follow()
    except CannotJoin as error:
        raise CommandError(str(error)) from error
    finally:
        cell.stop()


def _name(given: str) -> str:
    """A cell's name; of its own where none is given. Raises CommandError."""
    if given and not _NAME.fullmatch(given):
        raise CommandError(f"--name {given!r}: use letters, digits, ., - and _ (at most 80)")
    host = "".join(letter for letter in socket.gethostname() if letter.isalnum() or letter == "-")[:40] or "host"
    return given or f"{host}-{secrets.token_hex(3)}"


def _key(folder: StackFolder, given: Path | None) -> bytes:
    """Nothing is written before the folder is known to be free. Raises CommandError."""
    if folder.has_runs:
        raise CommandError(f"{folder.root} holds runs of its own: start the cell in another folder")
    if given is None and not folder.cell_key_file.exists():
        raise CommandError(
            f"--key is missing: copy the file cell-key from the .gyre folder of the run's host, and name the copy "
            f"(afterwards it stands in {folder.cell_key_file})"
        )
    if given is None:
        return b""
    if not given.is_file():
        raise CommandError(f"--key: there is no file {given}")
    key = given.read_bytes().strip()
    if not _CELL_KEY.fullmatch(key):
        raise CommandError(
            f"--key: {given} holds no cell key (64 hexadecimal digits): copy cell-key from the run's host once more"
        )
    return key


def _told(event: SupervisorEvent) -> None:
    if event.kind in STATED:
        print(f"{event.name}: {event.kind}{' (' + event.text + ')' if event.text else ''}", flush=True)


def list_cells(log: Log, info: RunInfo, console: Console, *, as_json: bool) -> None:
    """A line a cell in the fixed order, those that have left last; of a run that is over as the log has them last."""
    if info.ended is not None:
        print(f"gyre: {info.run} is over ({info.ended.outcome}); its cells were, at the end:", file=sys.stderr)
    fleet = read_fleet(log)
    states = sorted(fleet.cells.values(), key=lambda state: (state.role is CellRole.LEFT, state.position, state.cell))
    rows = [dict(zip(COLUMNS, _row(fleet, state), strict=True)) for state in states]
    if as_json or not console.is_terminal:
        for row in rows:
            print(json.dumps(row) if as_json else "\t".join(map(str, row.values())))
        return
    for row in rows:  # two lines each: an address must be readable on a narrow terminal, too
        console.print(f"[bold]{row['cell']}[/bold]  {row['role']}  {row['state']}", highlight=False, soft_wrap=True)
        if row["role"] != CellRole.LEFT.value:
            console.print(
                f"    v{row['version']}, {row['running']} calls, room for {row['capacity']} executions, {row['engine']}",
                highlight=False, soft_wrap=True,
            )  # fmt: skip


def _row(fleet: Fleet, state: CellState) -> tuple[str | int, ...]:
    if state.role is CellRole.LEFT:
        return state.cell, state.position, state.role.value, LifeState.GONE.value, state.version, 0, 0, ""
    due = fleet.due(state.cell)
    role = f"{state.role} (told: {due})" if due else state.role.value
    life = (state.life.value if state.life else "") + ("" if state.healthy else ", engine away")
    life += ", has ended" if state.ended else ", says nothing" if fleet.lost(state.cell) else ""
    return state.cell, state.position, role, life, state.version, state.capacity, state.running, state.url


def add_cells(log: KafkaLog, config: Config, count: int, wait: bool) -> list[str]:
    """Ask for cells on the run's own host; their names. With `wait`: once they are up. Raises CommandError at the limit."""
    fleet = read_fleet(log)
    taken, first = {*fleet.cells, *own_cells(log, config)}, next_place(fleet, config)
    free = (place for place in itertools.count(first) if cell_name(place) not in taken)
    wanted = [CellWanted(cell=cell_name(place), position=place) for place in itertools.islice(free, count)]
    log.append_all(wanted)
    names = [event.cell for event in wanted]
    limit = LifeLimits().starting
    if wait:
        _until(log, lambda now: all(name in now.cells for name in names), f"{', '.join(names)} to come up", limit)
    return names


def drain_cell(log: KafkaLog, cell: str, wait: bool) -> None:
    """Ask that a cell leave; with `wait`: until it has. Raises CommandError where it cannot, or at the limit."""
    fleet = read_fleet(log)
    state = fleet.cells.get(cell)
    if state is None:
        raise CommandError(f"no cell {cell!r} in {log.run}.{nearest(cell, fleet.cells)} `gyre cells list` names them")
    if state.position == 0:
        raise CommandError(f"{cell} is the core: it holds the weights and the optimizer, and stays to the end of the run")
    if state.role is CellRole.LEFT:
        raise CommandError(f"{cell} has left {log.run} already")
    log.append_all([LeaveWanted(cell=cell, by="gyre cells drain")])
    if wait:
        limit = LifeLimits().sealing + 60.0
        _until(log, lambda now: _has_left(now, cell), f"{cell} to leave", limit)


def _has_left(fleet: Fleet, cell: str) -> bool:
    """By its own word; one that is lost says none, and is of the run no more once it was told to leave."""
    state = fleet.cells.get(cell)
    return state is not None and (state.role is CellRole.LEFT or (fleet.leaves(cell) and fleet.lost(cell)))


def _until(log: KafkaLog, done: Callable[[Fleet], bool], what: str, limit_s: float) -> None:
    fleet, follower, until = Fleet(), log.follow(("cells", "commands")), time.monotonic() + limit_s
    try:
        while not done(fleet):
            if time.monotonic() > until:
                raise CommandError(f"waited {limit_s:.0f} s for {what}; `gyre cells list` shows where it stands")
            for record in follower.poll(0.5):
                fleet = observe(fleet, record.event)
    finally:
        follower.close()

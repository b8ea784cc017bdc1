"""Routes: which engines sample, folded from the events of cells and commands; and which of them a call goes to.

reads     cells, commands
promises  a pure fold and a pure choice: the same events give the same routes; commands of a lower epoch count for
          nothing; a cell that was told to leave sampling gets no new call, also where its own report is read first
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from gyre_engine.events import Event
from gyre_engine.events.cells import (
    CellHealth,
    CellRole,
    CellStarted,
    RoleChanged,
    SchedulerElected,
    SwitchRole,
    WeightsLoaded,
)

Command = tuple[int, int]
"""(epoch, number)"""


@dataclass(frozen=True, slots=True)
class Cell:
    """A cell as the proxy sees it. capacity: executions that it serves at once."""

    cell: str
    position: int
    incarnation: str
    url: str
    capacity: int
    role: CellRole
    version: int = 0
    """Weight version that its engine samples with."""
    healthy: bool = True
    obeyed: Command = (0, -1)
    told: tuple[Command, CellRole] | None = None

    @property
    def serves(self) -> bool:
        """Whether new calls may go there."""
        leaving = self.told is not None and self.told[0] > self.obeyed and self.told[1] is not CellRole.SAMPLING
        return self.role is CellRole.SAMPLING and self.healthy and not leaving


@dataclass(frozen=True, slots=True)
class Routes:
    """All cells, and the highest epoch among schedulers."""

    cells: Mapping[str, Cell] = field(default_factory=dict)
    epoch: int = 0

    @property
    def sampling(self) -> tuple[Cell, ...]:
        """The cells that sample, those first that will longest: outside the fixed order (position below 0), then the last ones."""
        return tuple(sorted((cell for cell in self.cells.values() if cell.serves), key=_lasting))


def _lasting(cell: Cell) -> tuple[bool, int, str]:
    return (cell.position >= 0, -cell.position, cell.cell)


def observe(routes: Routes, event: Event) -> Routes:
    """The routes after an event; events of other kinds change nothing."""
    match event:
        case CellStarted():
            return _with(routes, _started(event, routes.cells.get(event.cell)))
        case RoleChanged() | CellHealth() | WeightsLoaded():
            known = routes.cells.get(event.cell)
            if known is None or known.incarnation != event.incarnation:
                return routes
            return _with(routes, _changed(known, event))
        case SchedulerElected():
            return replace(routes, epoch=max(routes.epoch, event.epoch))
        case SwitchRole():
            return _commanded(routes, event)
        case _:
            return routes


def _with(routes: Routes, cell: Cell) -> Routes:
    return replace(routes, cells={**routes.cells, cell.cell: cell})


def _started(event: CellStarted, before: Cell | None) -> Cell:
    return Cell(
        cell=event.cell,
        position=event.position,
        incarnation=event.incarnation,
        url=event.engine_url,
        capacity=event.capacity,
        role=event.role,
        version=event.weight_version,
        obeyed=before.obeyed if before else (0, -1),
        told=before.told if before else None,
    )


def _changed(cell: Cell, event: RoleChanged | CellHealth | WeightsLoaded) -> Cell:
    if isinstance(event, WeightsLoaded):
        return replace(cell, version=event.version)
    if isinstance(event, CellHealth):
        return replace(cell, healthy=event.healthy)
    obeyed = max(cell.obeyed, (event.command_epoch, event.command_number))
    return replace(cell, role=event.role, obeyed=obeyed)


def _commanded(routes: Routes, event: SwitchRole) -> Routes:
    cell = routes.cells.get(event.cell)
    if event.epoch < routes.epoch or cell is None:
        return routes
    command = (event.epoch, event.number)
    if cell.told is not None and cell.told[0] >= command:
        return replace(routes, epoch=event.epoch)
    return replace(_with(routes, replace(cell, told=(command, event.to))), epoch=event.epoch)


def choose(
    routes: Routes,
    load: Mapping[str, int],
    *,
    sticky: str | None,
    moved: bool,
    avoid: frozenset[str] = frozenset(),
    version: int = 0,
) -> Cell | None:
    """The cell for a call, or None where none has room.

    load:    executions with an open call, by cell
    sticky:  where this execution's prefix cache is: it stays there while that cell samples and has room
    moved:   its cell has just left sampling: it goes where it can stay longest; else to the least loaded
    avoid:   cells that have just failed; they are taken only where nothing else samples
    version: that the execution was dispatched at: a cell that has not loaded it yet would make its tokens too old
    """
    room = [c for c in routes.sampling if load.get(c.cell, 0) < c.capacity and c.version >= version]
    trusted = [cell for cell in room if cell.cell not in avoid] or room
    if not trusted:
        return None
    for cell in trusted:
        if cell.cell == sticky and not moved:
            return cell
    if moved:
        return trusted[0]
    return min(trusted, key=lambda cell: load.get(cell.cell, 0) / cell.capacity)

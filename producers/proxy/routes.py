"""Routes: which engines sample, folded from the events of cells and commands; and which of them a call goes to.

reads     cells, commands
promises  a pure fold and a pure choice: the same events give the same routes; a cell that was told to leave sampling gets
          no new call, also where its own report is read first
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from gyre_engine.events import Event
from gyre_engine.scheduling import cells
from gyre_engine.scheduling.cells import CellState, Fleet


@dataclass(frozen=True, slots=True)
class Routes:
    """The fleet, as calls see it."""

    fleet: Fleet = field(default_factory=Fleet)

    @property
    def sampling(self) -> tuple[CellState, ...]:
        """The cells that sample, those first that will longest."""
        return self.fleet.serving


def observe(routes: Routes, event: Event) -> Routes:
    """The routes after an event; events of other kinds change nothing."""
    return replace(routes, fleet=cells.observe(routes.fleet, event))


def choose(
    routes: Routes,
    load: Mapping[str, int],
    *,
    sticky: str | None,
    moved: bool,
    avoid: frozenset[str] = frozenset(),
    version: int = 0,
) -> CellState | None:
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

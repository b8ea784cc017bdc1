"""The cells of a run and what they were told, folded from `cells` and `commands`: one fold for all who act on it.

promises  a word of a dead incarnation counts for nothing, nor does a command of an epoch that does not rule (log-rules, 8); the result
          does not depend on how the two topics interleave
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from gyre_engine.events import Event
from gyre_engine.events.cells import (
    CellEnded,
    CellHealth,
    CellLost,
    CellRole,
    CellStarted,
    LifeChanged,
    LifeState,
    MoveExecutions,
    RoleChanged,
    SchedulerElected,
    SwitchRole,
    WeightsLoaded,
)
from gyre_engine.scheduling.life import role_of

NEVER = (0, -1)
"""Below every command's (epoch, number)."""


@dataclass(frozen=True, slots=True)
class CellState:
    """A cell as its latest incarnation reported it.

    capacity: executions that its engine serves at once; version: weights that its engine samples with
    obeyed:   (epoch, number) of the last command that this incarnation carried out
    life:     where it stands in its life
    ended:    its processes have ended, by another's word; one of its own, and they have not
    running, waiting: requests that its engine had when it last said so
    words:    what was heard of this incarnation: events that change this state
    """

    cell: str
    position: int
    incarnation: str
    url: str
    capacity: int
    role: CellRole
    version: int = 0
    healthy: bool = True
    obeyed: tuple[int, int] = NEVER
    life: LifeState | None = None
    running: int = 0
    waiting: int = 0
    words: int = 1
    ended: bool = False


@dataclass(frozen=True, slots=True)
class Fleet:
    """All cells, the last command to each, and the scheduler that rules.

    losses: of each cell the last word that it had fallen silent
    moved:  number of the last command that moved executions
    """

    cells: Mapping[str, CellState] = field(default_factory=dict)
    commands: Mapping[str, SwitchRole] = field(default_factory=dict)
    losses: Mapping[str, CellLost] = field(default_factory=dict)
    epoch: int = 0
    holder: str = ""
    moved: int = 0

    @property
    def number(self) -> int:
        """Of the last command, 0 before any."""
        told: Iterable[SwitchRole | CellLost] = (*self.commands.values(), *self.losses.values())
        return max((self.moved, *(command.number for command in told)))

    @property
    def ordered(self) -> tuple[CellState, ...]:
        """Those that are there, in the fixed order. Two that joined at once may have one position: then the names decide."""
        there = (state for state in self.cells.values() if not self.leaves(state.cell) and not self.lost(state.cell))
        return tuple(sorted(there, key=lambda state: (state.position, state.cell)))

    def leaves(self, cell: str) -> bool:
        """Whether a cell has left the run, or was told to."""
        state, command = self.cells.get(cell), self.commands.get(cell)
        told = command is not None and command.to is CellRole.LEFT
        return told or (state is not None and state.role is CellRole.LEFT)

    def lost(self, cell: str) -> bool:
        """Whether it has ended, or fell silent and has said nothing since: it counts as gone."""
        state, loss = self.cells.get(cell), self.losses.get(cell)
        if state is not None and state.ended:
            return True
        if loss is None or state is None:
            return loss is not None
        return state.incarnation == loss.incarnation and state.words <= loss.words

    def away(self, cell: str) -> bool:
        """Whether what is open at its engine may never end: the engine does not answer its agent, or the cell is lost."""
        state = self.cells.get(cell)
        return self.lost(cell) or (state is not None and not state.healthy)

    def due(self, cell: str) -> CellRole | None:
        """The role that the cell was told to take and has not reported yet."""
        command, state = self.commands.get(cell), self.cells.get(cell)
        if command is None or state is None or (command.epoch, command.number) <= state.obeyed:
            return None
        return None if command.to is state.role else command.to

    @property
    def serving(self) -> tuple[CellState, ...]:
        """The cells that take new calls, those first that will longest: outside the fixed order (position below 0), then the last."""
        found = (state for name, state in self.cells.items() if self.serves(name))
        return tuple(sorted(found, key=lambda state: (state.position >= 0, -state.position, state.cell)))

    def serves(self, cell: str) -> bool:
        """Whether its engine takes new calls: it samples, is not away, and was not told to leave."""
        state = self.cells.get(cell)
        return state is not None and state.role is CellRole.SAMPLING and not self.away(cell) and self.due(cell) is None


def observe(fleet: Fleet, event: Event) -> Fleet:
    """The fleet after an event of `cells` or `commands`; others change nothing."""
    match event:
        case CellStarted():
            return _with(fleet, _started(event, fleet.cells.get(event.cell)))
        case RoleChanged() | LifeChanged() | CellHealth() | WeightsLoaded() | CellEnded():
            state = fleet.cells.get(event.cell)
            known = state is not None and state.incarnation == event.incarnation
            return _with(fleet, _changed(state, event)) if state is not None and known else fleet
        case SchedulerElected() if event.epoch > fleet.epoch:
            return replace(fleet, epoch=event.epoch, holder=event.holder)
        case SwitchRole() if event.epoch >= fleet.epoch and _is_newer(fleet.commands.get(event.cell), event):
            return replace(fleet, epoch=event.epoch, commands={**fleet.commands, event.cell: event})
        case MoveExecutions() if event.epoch >= fleet.epoch:
            return replace(fleet, epoch=event.epoch, moved=max(fleet.moved, event.number))
        case CellLost() if event.epoch >= fleet.epoch and _is_newer(fleet.losses.get(event.cell), event):
            return replace(fleet, epoch=event.epoch, losses={**fleet.losses, event.cell: event})
        case _:
            return fleet


def _with(fleet: Fleet, state: CellState) -> Fleet:
    return replace(fleet, cells={**fleet.cells, state.cell: state})


def _started(event: CellStarted, before: CellState | None) -> CellState:
    words = before.words + 1 if before is not None and before.incarnation == event.incarnation else 1
    return CellState(
        event.cell, event.position, event.incarnation, event.engine_url, event.capacity, event.role, event.weight_version,
        life=_FIRST[event.role], words=words,
    )  # fmt: skip


_FIRST = {role_of(life): life for life in (LifeState.GONE, LifeState.REFRESHING, LifeState.JOINING, LifeState.SAMPLING)}
"""Where a cell of a role stands when it says that it has started."""


def _changed(state: CellState, event: RoleChanged | LifeChanged | CellHealth | WeightsLoaded | CellEnded) -> CellState:
    state = replace(state, words=state.words + 1, ended=isinstance(event, CellEnded))
    if isinstance(event, CellEnded):
        return state
    if isinstance(event, LifeChanged):
        return replace(state, life=event.after, role=role_of(event.after))
    if isinstance(event, WeightsLoaded):
        return replace(state, version=event.version)
    if isinstance(event, CellHealth):
        return replace(state, healthy=event.healthy, running=event.running, waiting=event.waiting)
    obeyed = max(state.obeyed, (event.command_epoch, event.command_number))
    return replace(state, role=event.role, obeyed=obeyed)


def _is_newer(before: SwitchRole | CellLost | None, event: SwitchRole | CellLost) -> bool:
    return before is None or (event.epoch, event.number) > (before.epoch, before.number)

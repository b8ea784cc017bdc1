"""Executions that a switch interrupted: where the scheduler sends them, and whether their KV is there yet.

reads     cells, commands (through `apply`)
promises  a pure fold of bounded size: one drain a cell, one move an execution until it goes on or is forgotten
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from gyre_engine.events import Event
from gyre_engine.events.cells import CellRole, Drained, KvImported, Move, MoveExecutions, SwitchRole

Command = tuple[int, int]
"""(epoch, number)"""


@dataclass(slots=True)
class Moves:
    """interrupted: by cell, the last drain; decided: by cell, the drain whose moves were commanded; going: by execution."""

    interrupted: dict[str, Drained] = field(default_factory=dict)
    decided: dict[str, Command] = field(default_factory=dict)
    going: dict[str, Move] = field(default_factory=dict)
    _there: set[str] = field(default_factory=set)

    def apply(self, event: Event) -> None:
        """Take in an event of `cells` or `commands`."""
        match event:
            case Drained():
                self.interrupted[event.cell] = event
            case MoveExecutions():
                self.decided[event.source] = event.drained
                self.going |= {move.execution: move for move in event.moves}
            case KvImported() if event.execution in self.going:
                self._there.add(event.rid)
            case _:
                pass

    def awaited(self, execution: str, source: str, commands: Mapping[str, SwitchRole]) -> bool:
        """Whether an execution whose cell was told to leave should wait for word of where it goes on, or for its KV."""
        command = commands.get(source)
        if command is None or command.to is not CellRole.TRAINING:
            return False
        by = (command.epoch, command.number)
        drained = self.interrupted.get(source)
        if drained is None or (drained.command_epoch, drained.command_number) != by:
            return True
        if self.decided.get(source) != by:
            return any(request.execution == execution for request in drained.requests)
        move = self.going.get(execution)
        return move is not None and move.with_kv and move.rid not in self._there

    def taken(self, execution: str) -> str | None:
        """The cell that the scheduler named for an execution; asked once."""
        move = self.going.pop(execution, None)
        if move is None:
            return None
        self._there.discard(move.rid)
        return move.destination

    def forget(self, execution: str) -> None:
        """The execution is over."""
        self.taken(execution)

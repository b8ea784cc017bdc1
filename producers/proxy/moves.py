"""Executions that a switch interrupted: where the scheduler sends them, and whether their KV is there yet.

reads     cells, commands (through `apply`)
promises  a fold of bounded size: of each cell its last drain, what was decided on it and what of it has arrived; a deposed scheduler
          decides nothing (log-rules, 8); what is past holds no room, as that is kept for open calls alone; the end is the same
          however `cells` and `commands` interleave, and whatever comes twice
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from gyre_engine.events import Event
from gyre_engine.events.cells import CellRole, Drained, KvImported, Move, MoveExecutions, SwitchRole

Commands = Mapping[str, SwitchRole]
"""The last command to each cell."""


@dataclass(slots=True)
class _Drain:
    """What is known of a cell's last drain. arrived: rids whose destination is done with their KV."""

    drained: Drained | None = None
    decided: MoveExecutions | None = None
    arrived: set[str] = field(default_factory=set)


@dataclass(slots=True)
class Moves:
    """By the cell that was drained."""

    _drains: dict[str, _Drain] = field(default_factory=dict)

    def apply(self, event: Event, epoch: int) -> None:
        """Take in an event of `cells` or `commands`. epoch: of the scheduler that rules."""
        match event:
            case Drained():
                before = self._drains.get(event.cell, _Drain())
                answered = before.decided is not None and before.decided.drained == event.command
                self._drains[event.cell] = _Drain(event, before.decided, before.arrived) if answered else _Drain(event)
            case MoveExecutions() if event.epoch >= epoch:
                drain = self._drains.setdefault(event.source, _Drain())
                if drain.decided is None or (event.epoch, event.number) > (drain.decided.epoch, drain.decided.number):
                    drain.decided = event
            case KvImported() if event.source in self._drains:
                self._drains[event.source].arrived.add(event.rid)
            case _:
                pass

    def undecided(self, execution: str, source: str, commands: Commands) -> bool:
        """Whether an execution that was interrupted on `source` should wait for word of where it goes on."""
        command = commands.get(source)
        if command is None or command.to is CellRole.SAMPLING:
            return False
        drain = self._drains.get(source, _Drain())
        if drain.drained is None or drain.drained.command != (command.epoch, command.number):
            return True
        named = any(request.execution == execution for request in drain.drained.requests)
        return named and self._decided(source, commands) is None

    def worth_s(self, execution: str, source: str, commands: Commands) -> float:
        """How long its KV is worth waiting for, from the word on; 0 where none comes, or all is there."""
        arrived = self._drains.get(source, _Drain()).arrived
        own = (move for move in self._moves(source, commands) if move.execution == execution and move.with_kv)
        return max((move.wait_us / 1e6 for move in own if move.rid not in arrived), default=0.0)

    def destination(self, execution: str, source: str, commands: Commands) -> str | None:
        """The cell that the scheduler named for it."""
        return next((move.destination for move in self._moves(source, commands) if move.execution == execution), None)

    def expected(self, source: str, commands: Commands) -> Iterator[tuple[str, str]]:
        """(execution, destination) of all that was decided on the drain by the last command to a cell."""
        return ((move.execution, move.destination) for move in self._moves(source, commands))

    def _decided(self, source: str, commands: Commands) -> MoveExecutions | None:
        """What was decided on the drain by the last command to the cell."""
        command, drain = commands.get(source), self._drains.get(source)
        if command is None or drain is None or drain.decided is None:
            return None
        return drain.decided if drain.decided.drained == (command.epoch, command.number) else None

    def _moves(self, source: str, commands: Commands) -> tuple[Move, ...]:
        decided = self._decided(source, commands)
        return decided.moves if decided else ()

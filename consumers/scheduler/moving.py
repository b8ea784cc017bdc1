"""Where interrupted executions go on: the scheduler's answer to a drain. A fold and a plan; pure.

reads     cells, commands (through `see`)
writes    commands: move-executions (by the process)
"""

from __future__ import annotations

from dataclasses import dataclass, field

from gyre_engine.events import Event
from gyre_engine.events.cells import Drained, MoveExecutions
from gyre_engine.scheduling.cells import Fleet
from gyre_engine.scheduling.migration import KvCosts, plan_moves


@dataclass(slots=True)
class Moving:
    """State: one drain a cell, and what moves and prefills have cost. kv, across_versions: of plan_moves."""

    kv: str = "auto"
    across_versions: bool = False
    costs: KvCosts = field(default_factory=KvCosts)
    _drains: dict[str, Drained] = field(default_factory=dict)
    _answered: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Of each cell the drain that was answered last: a new scheduler may read the answer before the drain."""

    def see(self, event: Event, epoch: int) -> None:
        """Take one event into account. epoch: of the scheduler that rules; what a deposed one says answers nothing (log-rules, 8)."""
        self.costs = self.costs.observe(event)
        match event:
            case Drained() if event.requests and self._answered.get(event.cell) != _by(event):
                self._drains[event.cell] = event
            case MoveExecutions() if event.epoch >= epoch:
                self._drains.pop(event.source, None)
                self._answered[event.source] = event.drained
            case _:
                pass

    def waits(self, cell: str) -> bool:
        """Whether a drain of this cell is not answered yet."""
        return cell in self._drains

    def due(self, fleet: Fleet, epoch: int, number: int) -> MoveExecutions | None:
        """The command that answers a drain which the last command to its cell began, if one is to be answered."""
        for cell, drained in self._drains.items():
            command = fleet.commands.get(cell)
            if command is not None and (command.epoch, command.number) == _by(drained):
                moves = plan_moves(drained, fleet.serving, self.costs, self.kv, across_versions=self.across_versions)
                return MoveExecutions(epoch=epoch, number=number, source=cell, drained=_by(drained), moves=moves)
        return None


def _by(drained: Drained) -> tuple[int, int]:
    return drained.command_epoch, drained.command_number

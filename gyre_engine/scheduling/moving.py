"""Where interrupted executions go on: the scheduler's answer to a drain. A fold and a plan; pure.

reads     cells, commands, executions (through `see`)
writes    commands: move-executions (by the process)
"""

from __future__ import annotations

from dataclasses import dataclass, field

from gyre_engine.events import Event
from gyre_engine.events.cells import CellHealth, CellStarted, Drained, Move, MoveExecutions
from gyre_engine.events.executions import Discarded, Dispatched, Finished
from gyre_engine.scheduling.cells import Fleet
from gyre_engine.scheduling.migration import KvCosts, plan_moves


@dataclass(slots=True)
class Moving:
    """State: one drain a cell, a version of each execution that is out, and what moves and prefills have cost.

    kv, across_versions: of plan_moves
    """

    kv: str = "auto"
    across_versions: bool = False
    costs: KvCosts = field(default_factory=KvCosts)
    _drains: dict[str, Drained] = field(default_factory=dict)
    _answered: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Of each cell the drain that was answered last: a new scheduler may read the answer before the drain."""
    _planned: dict[str, set[str]] = field(default_factory=dict)
    """By cell the executions that were sent there since its last word of what it runs."""
    _versions: dict[str, int] = field(default_factory=dict)

    def see(self, event: Event, epoch: int) -> None:
        """Take one event into account. epoch: of the scheduler that rules; what a deposed one says answers nothing (log-rules, 8)."""
        self.costs = self.costs.observe(event)
        match event:
            case Drained() if event.requests and self._answered.get(event.cell) != event.command:
                self._drains[event.cell] = event
            case MoveExecutions() if event.epoch >= epoch:
                self._drains.pop(event.source, None)
                self._answered[event.source] = event.drained
                for move in event.moves:
                    self._planned.setdefault(move.destination, set()).add(move.execution)
            case CellHealth() | CellStarted():
                self._planned.pop(event.cell, None)
            case Dispatched():
                self._versions[event.execution] = event.weight_version
            case Finished() | Discarded():
                self._versions.pop(event.execution, None)
            case _:
                pass

    def waits(self, cell: str) -> bool:
        """Whether a drain of this cell is not answered yet."""
        return cell in self._drains

    def due(self, fleet: Fleet, epoch: int, number: int) -> MoveExecutions | None:
        """The command that answers a drain which the last command to its cell began, if one is to be answered."""
        for cell, drained in self._drains.items():
            command = fleet.commands.get(cell)
            if command is not None and (command.epoch, command.number) == drained.command:
                return MoveExecutions(
                    epoch=epoch, number=number, source=cell, drained=drained.command, moves=self._plan(drained, fleet)
                )
        return None

    def _plan(self, drained: Drained, fleet: Fleet) -> tuple[Move, ...]:
        planned = {cell: len(executions) for cell, executions in self._planned.items()}
        return plan_moves(
            drained, fleet.serving, self.costs, self.kv, across_versions=self.across_versions, planned=planned,
            versions=self._versions,
        )  # fmt: skip

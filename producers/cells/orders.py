"""What a cell is to do, folded from `commands`, `training` and `cells`. Pure.

promises  only the highest scheduler epoch and the ruling core are obeyed (log-rules, 8)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from gyre_engine.events import Event
from gyre_engine.events.cells import (
    CellEnded,
    CellHealth,
    CellLost,
    CellRole,
    CellStarted,
    KvExported,
    KvImported,
    LifeChanged,
    MoveExecutions,
    RoleChanged,
    SchedulerElected,
    SwitchRole,
    WeightsHeld,
    WeightsLoaded,
)
from gyre_engine.events.training import Published
from gyre_engine.scheduling.cells import Fleet, observe
from gyre_engine.scheduling.classes import ClassPlan
from gyre_engine.training.ledger.fold import Ledger, Member, apply

Command = tuple[int, int]
"""(epoch, number)"""


@dataclass(frozen=True, slots=True)
class Orders:
    """The last switch that this cell was commanded, the version that its engine is to sample with, and its place in the step.

    moves:    what became of the requests that its last drain interrupted, once the scheduler has said so
    imported: rids of its exports that their destinations are done with, of that drain
    held:     what each cell last said that it passes on of the weights
    offers:   exports that other cells keep for this one and that it has not answered, by (source, rid)
    """

    cell: str
    plan: ClassPlan
    fleet: Fleet = field(default_factory=Fleet)
    ledger: Ledger = field(default_factory=Ledger)
    weights: Published | None = None
    held: Mapping[str, WeightsHeld] = field(default_factory=dict)
    moves: MoveExecutions | None = None
    imported: frozenset[str] = frozenset()
    offers: Mapping[tuple[str, str], KvExported] = field(default_factory=dict)

    @property
    def switch(self) -> SwitchRole | None:
        """The last command of the ruling schedulers to this cell."""
        return self.fleet.commands.get(self.cell)

    @property
    def command(self) -> Command:
        """Of `switch`; (0, 0) before any."""
        return (self.switch.epoch, self.switch.number) if self.switch else (0, 0)

    @property
    def role(self) -> CellRole:
        """Every cell samples until it is told otherwise."""
        return self.switch.to if self.switch else CellRole.SAMPLING

    @property
    def member(self) -> Member | None:
        """The cell's trainer in the open step."""
        return self.ledger.open.members.get(self.cell) if self.ledger.open else None


def obey(orders: Orders, event: Event) -> Orders:
    """The orders after `event`."""
    match event:
        case SchedulerElected() | SwitchRole() | CellLost():
            return replace(orders, fleet=observe(orders.fleet, event))
        case CellStarted() | RoleChanged() | LifeChanged() | CellHealth() | WeightsLoaded() | CellEnded():
            return replace(orders, fleet=observe(orders.fleet, event))
        case WeightsHeld():
            return replace(orders, held={**orders.held, event.cell: event})
        case MoveExecutions() if event.source == orders.cell and _is_new(orders, event):
            return replace(orders, moves=event, imported=frozenset())
        case KvExported() if event.destination == orders.cell:
            return replace(orders, offers={**orders.offers, (event.cell, event.rid): event})
        case KvImported() if event.cell == orders.cell:
            answered = (event.source, event.rid)
            return replace(orders, offers={key: offer for key, offer in orders.offers.items() if key != answered})
        case KvImported() if event.source == orders.cell:
            return replace(orders, imported=orders.imported | {event.rid})
        case _:
            return _trained(orders, event)


def _is_new(orders: Orders, event: MoveExecutions) -> bool:
    """Not of a deposed scheduler, nor one that comes again: what was imported since would be forgotten."""
    before = (orders.moves.epoch, orders.moves.number) if orders.moves else (0, 0)
    return event.epoch >= orders.fleet.epoch and (event.epoch, event.number) > before


def _trained(orders: Orders, event: Event) -> Orders:
    """After an event of the ledger."""
    after = replace(orders, ledger=apply(orders.ledger, event))
    if isinstance(event, Published) and event.core_epoch == after.ledger.core_epoch and _for_samplers(orders, event):
        return replace(after, weights=event)
    return after


def _for_samplers(orders: Orders, event: Published) -> bool:
    # A core that has come up anew may publish in the middle of a burst: what was published before it can be read no more.
    first_of_its_core = orders.weights is None or orders.weights.core_epoch < event.core_epoch
    return orders.plan.for_samplers(event.version) or first_of_its_core

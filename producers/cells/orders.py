"""What a cell is to do, folded from `commands` and `training`. Pure.

promises  only the highest scheduler epoch and the ruling core are obeyed (log-rules, 8)
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from gyre_engine.events import Event
from gyre_engine.events.cells import CellRole, SchedulerElected, SwitchRole
from gyre_engine.events.training import CoreElected, Published
from gyre_engine.scheduling.cells import Fleet, observe
from gyre_engine.scheduling.classes import ClassPlan


@dataclass(frozen=True, slots=True)
class Orders:
    """The last switch that this cell was commanded, and the version that its engine is to sample with."""

    cell: str
    plan: ClassPlan
    fleet: Fleet = field(default_factory=Fleet)
    core_epoch: int = 0
    weights: Published | None = None

    @property
    def switch(self) -> SwitchRole | None:
        """The last command of the ruling schedulers to this cell."""
        return self.fleet.commands.get(self.cell)

    @property
    def role(self) -> CellRole:
        """Every cell samples until it is told otherwise."""
        return self.switch.to if self.switch else CellRole.SAMPLING


def obey(orders: Orders, event: Event) -> Orders:
    """The orders after `event`."""
    match event:
        case SchedulerElected() | SwitchRole():
            return replace(orders, fleet=observe(orders.fleet, event))
        case CoreElected() if event.core_epoch > orders.core_epoch:
            return replace(orders, core_epoch=event.core_epoch)
        case Published() if event.core_epoch == orders.core_epoch and _for_samplers(orders, event):
            return replace(orders, weights=event)
        case _:
            return orders


def _for_samplers(orders: Orders, event: Published) -> bool:
    # A core that has come up anew may publish in the middle of a burst: what was published before it can be read no more.
    first_of_its_core = orders.weights is None or orders.weights.core_epoch < event.core_epoch
    return orders.plan.for_samplers(event.version) or first_of_its_core

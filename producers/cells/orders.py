"""What a cell is to do, folded from `commands` and `training`. Pure.

promises  only the highest scheduler epoch and the ruling core are obeyed (log-rules, 8)
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from gyre_engine.events import Event
from gyre_engine.events.cells import CellRole, SchedulerElected, SwitchRole
from gyre_engine.events.training import CoreElected, Published
from gyre_engine.scheduling.classes import ClassPlan


@dataclass(frozen=True, slots=True)
class Orders:
    """The last switch that this cell was commanded, and the version that its engine is to sample with."""

    cell: str
    plan: ClassPlan
    scheduler_epoch: int = 0
    core_epoch: int = 0
    switch: SwitchRole | None = None
    weights: Published | None = None

    @property
    def role(self) -> CellRole:
        """Every cell samples until it is told otherwise."""
        return self.switch.to if self.switch else CellRole.SAMPLING


def obey(orders: Orders, event: Event) -> Orders:
    """The orders after `event`."""
    match event:
        case SchedulerElected() if event.epoch > orders.scheduler_epoch:
            return replace(orders, scheduler_epoch=event.epoch)
        case SwitchRole() if event.cell == orders.cell and event.epoch == orders.scheduler_epoch:
            return replace(orders, switch=event)
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

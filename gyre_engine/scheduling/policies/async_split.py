"""`async`: a fixed split. The first `training_cells` cells train for ever, all others sample for ever (method.md, 5)."""

from __future__ import annotations

from gyre_engine.events.cells import CellRole
from gyre_engine.scheduling.cluster import Begin, Cluster, Decision, Demand, Switch
from gyre_engine.scheduling.policies.port import PolicySettings


def async_split(cluster: Cluster, demand: Demand, settings: PolicySettings) -> Decision | None:
    """The next command until the split stands; then every burst begins as soon as the one before is over. Nothing at the run's end,
    nor while the core is lost.
    """
    if cluster.switching or cluster.core is None or demand.over:
        return None
    for place, cell in enumerate(cluster.order):
        role = CellRole.TRAINING if place < settings.training_cells else CellRole.SAMPLING
        if cell.role is not role:
            return Switch(cell.name, role, f"the split: the first {settings.training_cells} of {len(cluster.order)} cells train")
    return None if demand.begun else Begin("the split stands")

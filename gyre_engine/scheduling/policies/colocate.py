"""`colocate`: all cells sample, then all train (method.md, 5).

They leave sampling when every step of the burst has its batch; what is out there waits meanwhile. The commands are serial like all
commands, and count as one: the core goes into training last, so nothing is trained before all have left sampling, and leaves it first,
so nothing is sampled before the burst is done, nor trained once somebody samples. Where the next burst is ready by then, they stay.
While the core is lost, all sample.
"""

from __future__ import annotations

from gyre_engine.events.cells import CellRole
from gyre_engine.scheduling.cluster import Begin, Cluster, Decision, Demand, Switch
from gyre_engine.scheduling.policies.port import PolicySettings


def colocate(cluster: Cluster, demand: Demand, settings: PolicySettings) -> Decision | None:
    """The next command of the switch that all cells make together."""
    if cluster.switching:
        return None
    train = cluster.core is not None and (demand.step_open or (demand.burst_ready and not demand.blocked and not demand.over))
    first, rest = cluster.order[:1], cluster.order[1:]
    role, order = (CellRole.TRAINING, (*rest, *first)) if train else (CellRole.SAMPLING, (*first, *rest))
    reason = "the burst has all its batches" if train else "the burst is over"
    for cell in order:
        if cell.role is not role:
            return Switch(cell.name, role, reason)
    return Begin(reason) if train and not demand.begun else None

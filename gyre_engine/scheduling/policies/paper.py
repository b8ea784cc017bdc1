"""`paper`: elastic scheduling as method.md 2 has it.

A cell leaves sampling only while w <= C_R - C_e and training data is ready; one after the other, the core first, satellites in their
fixed order, so that those in training are a prefix that grows until the burst ends. Then satellites go back, and the core too, unless
the next batch is ready and the remaining capacity covers what is out and due.

The paper is silent on two cases, where waiting would last for ever: inside a burst no step is open and none can be, as its batch is
not there or an evaluation comes first, or the core is lost, and more is out than the sampling cells serve (a second attempt, or that
evaluation, came after the last cell had left). Then the last cell goes back.
"""

from __future__ import annotations

from gyre_engine.events.cells import CellRole
from gyre_engine.scheduling.cluster import Begin, Cell, Cluster, Decision, Demand, Switch
from gyre_engine.scheduling.policies.port import PolicySettings


def paper(cluster: Cluster, demand: Demand, settings: PolicySettings) -> Decision | None:
    """The next command under the paper's policy."""
    if cluster.switching:
        return None
    return _begin(cluster, demand, settings) or _go_back(cluster, demand) or _leave_sampling(cluster, demand, settings)


def _begin(cluster: Cluster, demand: Demand, settings: PolicySettings) -> Begin | None:
    training = cluster.training
    if demand.begun or demand.over or not demand.batch_ready or not training or training[0].position != 0:
        return None
    rest = cluster.capacity_beside_the_core
    if not _covers(rest, cluster, demand, settings):
        return None
    return Begin(f"the next batch is ready, {demand.out_there} executions are out or due, the other cells serve {rest}")


def _go_back(cluster: Cluster, demand: Demand) -> Switch | None:
    if not cluster.training:
        return None
    if not demand.begun or demand.over:
        return _back(cluster.training[-1], "the burst is over")
    if held := [c for c in cluster.training if c.held_over and c.position > 0]:
        return _back(held[-1], "the burst that it joined is over")
    goes_on = cluster.core is not None and (demand.step_open or (demand.batch_ready and not demand.blocked))
    if goes_on or demand.out_there <= cluster.sampling_capacity:
        return None
    reason = f"no step can go on, {demand.out_there} executions are out, C_R is {cluster.sampling_capacity}"
    return _back(cluster.training[-1], reason)


def _leave_sampling(cluster: Cluster, demand: Demand, settings: PolicySettings) -> Switch | None:
    cell = next((c for c in cluster.order if c.role is CellRole.SAMPLING), None)
    if cell is None or demand.over or not _work_for(cell, demand):
        return None
    rest = cluster.sampling_capacity - cluster.capacity_per_cell
    if not _covers(rest, cluster, demand, settings):
        return None
    reason = f"w {demand.out_there} <= C_R {cluster.sampling_capacity} - {settings.slack:g} x C_e {cluster.capacity_per_cell}"
    return Switch(cell.name, CellRole.TRAINING, reason)


def _work_for(cell: Cell, demand: Demand) -> bool:
    if cell.position == 0:
        return demand.batch_ready or demand.step_open
    return demand.step_open and demand.free_micro_steps > 0


def _covers(rest: int, cluster: Cluster, demand: Demand, settings: PolicySettings) -> bool:
    """Whether capacity `rest`, what is left without the cell in question, serves all; a slack below 1 lets some wait."""
    return demand.out_there <= rest + (1.0 - settings.slack) * cluster.capacity_per_cell


def _back(cell: Cell, reason: str) -> Switch:
    return Switch(cell.name, CellRole.SAMPLING, reason)

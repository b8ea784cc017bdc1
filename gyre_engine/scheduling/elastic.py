"""The elastic policy: which cell changes role next (method.md, 2).

Pure: the same function decides live and in a simulator. Transfers are serial; the core leaves sampling first and satellites follow
in their fixed order, so that the cells in training are always a prefix. A cell leaves only while `w <= C_R - slack * C_e` and work
is ready for it. After a burst satellites go back, and the core too unless the next batch is ready and the rest can serve what
is still out there.
"""

from __future__ import annotations

from dataclasses import dataclass

from gyre_engine.events.cells import CellRole


@dataclass(frozen=True, slots=True)
class Cell:
    """One cell as the scheduler sees it."""

    name: str
    position: int
    role: CellRole


@dataclass(frozen=True, slots=True)
class Cluster:
    """The cells in their fixed order, and C_e: executions that one cell serves."""

    cells: tuple[Cell, ...]
    capacity_per_cell: int

    @property
    def switching(self) -> bool:
        return any(c.role is CellRole.SWITCHING for c in self.cells)

    @property
    def sampling(self) -> tuple[Cell, ...]:
        return tuple(c for c in self.cells if c.role is CellRole.SAMPLING)

    @property
    def training(self) -> tuple[Cell, ...]:
        return tuple(c for c in self.cells if c.role is CellRole.TRAINING)

    @property
    def sampling_capacity(self) -> int:
        """C_R"""
        return len(self.sampling) * self.capacity_per_cell


@dataclass(frozen=True, slots=True)
class Demand:
    """What is out there and what could be trained."""

    water_level: int
    to_dispatch: int
    """Executions that will be dispatched as soon as the burst is over."""
    batch_ready: bool
    """B groups of the next class are admitted."""
    step_open: bool
    free_micro_steps: int
    """Micro-steps of the open step that nobody has claimed."""
    burst_open: bool
    """Steps of this burst are still to be made."""


@dataclass(frozen=True, slots=True)
class Switch:
    """A decision and its reason."""

    cell: str
    to: CellRole
    reason: str


def next_switch(cluster: Cluster, demand: Demand, slack: float = 1.0) -> Switch | None:
    """The next cell to change its role, or None. Serial: nothing while a cell is switching."""
    if cluster.switching:
        return None
    return _leave_training(cluster, demand, slack) or _leave_sampling(cluster, demand, slack)


def _leave_sampling(cluster: Cluster, demand: Demand, slack: float) -> Switch | None:
    if not cluster.sampling or not _work_for_another(cluster, demand):
        return None
    if demand.water_level > cluster.sampling_capacity - slack * cluster.capacity_per_cell:
        return None
    cell = cluster.sampling[0]
    reason = f"w {demand.water_level} <= C_R {cluster.sampling_capacity} - {slack:g} x C_e {cluster.capacity_per_cell}"
    return Switch(cell.name, CellRole.TRAINING, reason)


def _work_for_another(cluster: Cluster, demand: Demand) -> bool:
    if cluster.sampling and cluster.sampling[0].position == 0:
        return demand.batch_ready or demand.step_open
    return demand.step_open and demand.free_micro_steps > 0


def _leave_training(cluster: Cluster, demand: Demand, slack: float) -> Switch | None:
    if demand.step_open or not cluster.training:
        return None
    if demand.burst_open and demand.batch_ready:
        return None
    last = cluster.training[-1]
    if last.position > 0:
        return Switch(last.name, CellRole.SAMPLING, "the burst is over" if not demand.burst_open else "no batch is ready")
    out_there = demand.water_level + demand.to_dispatch
    if demand.batch_ready and out_there <= cluster.sampling_capacity:
        return None
    if not demand.batch_ready:
        return Switch(last.name, CellRole.SAMPLING, "no batch is ready")
    return Switch(last.name, CellRole.SAMPLING, f"{out_there} executions are out or due, C_R is {cluster.sampling_capacity}")

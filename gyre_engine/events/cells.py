"""Events on `cells`, `commands` and `water-level`: who samples, who trains, and who decided it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from gyre_engine.events.envelope import Event, event


class CellRole(StrEnum):
    """What a cell does. `switching`: it serves nobody until the switch is done."""

    SAMPLING = "sampling"
    TRAINING = "training"
    SWITCHING = "switching"


@event("cell-started", topic="cells", key="cell")
@dataclass(frozen=True, slots=True, kw_only=True)
class CellStarted(Event):
    """A cell's agent is up and its engine answers. A new start of the same cell replaces the old one."""

    cell: str
    position: int
    """Place in the fixed order of cells; 0 is the core."""
    incarnation: str
    engine: str
    """Kind of engine: native, sglang, scripted."""
    engine_url: str
    capacity: int
    """Executions that it serves at once (C_e)."""
    role: CellRole
    weight_version: int


@event("role-changed", topic="cells", key="cell")
@dataclass(frozen=True, slots=True, kw_only=True)
class RoleChanged(Event):
    """A cell has obeyed a SwitchRole."""

    cell: str
    incarnation: str
    role: CellRole
    command_epoch: int
    command_number: int
    aborted_requests: int = 0
    took_us: int = 0


@event("cell-health", topic="cells", key="cell")
@dataclass(frozen=True, slots=True, kw_only=True)
class CellHealth(Event):
    """A cell's health or load changed, or its period came round."""

    cell: str
    incarnation: str
    healthy: bool
    reason: str = ""
    running: int = 0
    waiting: int = 0
    kv_tokens: int = 0
    generated_tokens: int = 0
    prefilled_tokens: int = 0
    reused_tokens: int = 0


@event("weights-loaded", topic="cells", key="cell")
@dataclass(frozen=True, slots=True, kw_only=True)
class WeightsLoaded(Event):
    """The cell's engine samples with this version from now on."""

    cell: str
    incarnation: str
    version: int
    weights_hash: str
    took_us: int = 0


@event("probe-gap", topic="cells", key="cell")
@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeGap(Event):
    """Engine and trainer scored the same probe at the same version (learning.md, 8)."""

    cell: str
    version: int
    tokens: int
    gap_max: float
    gap_mean: float


@event("scheduler-elected", topic="commands", key="run")
@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerElected(Event):
    """A scheduler takes over; commands of lower epochs are ignored from here on (log-rules, 8)."""

    epoch: int
    holder: str


@event("switch-role", topic="commands", key="run")
@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchRole(Event):
    """Cell `cell` is to change its role. `water_level` and `sampling_capacity` are what the decision saw."""

    epoch: int
    number: int
    cell: str
    to: CellRole
    reason: str
    water_level: int
    sampling_capacity: int


@event("water-level-changed", topic="water-level", key="run")
@dataclass(frozen=True, slots=True, kw_only=True)
class WaterLevelChanged(Event):
    """d(t), p(t), f(t), w = d - f, what can be served, and what is ready to be trained on."""

    dispatched: int
    started: int
    terminated: int
    level: int
    capacity_per_cell: int
    """C_e"""
    sampling_capacity: int
    """C_R: executions that the sampling cells can serve."""
    sampling_cells: tuple[str, ...]
    training_cells: tuple[str, ...]
    switching_cells: tuple[str, ...]
    ready_groups: int
    """Groups admitted (or skipped) and not yet consumed by a committed step."""
    committed_step: int

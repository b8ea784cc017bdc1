"""What a cell's agent is told."""

from __future__ import annotations

from dataclasses import dataclass, field

from gyre_engine.scheduling.classes import ClassPlan
from gyre_engine.scheduling.life import LifeLimits


@dataclass(frozen=True, slots=True)
class AgentSettings:
    """`model_path`: the initial model's folder; `scratch`: where pulled weights are put for the engine.

    transfer:        its kind (gyre_engine.transfer.kinds), and where others reach its memory
    order:           all cells in the fixed order: the tree in which weights are passed on (gyre_engine.scheduling.broadcast)
    fanout, patience_s: of that tree; see `publish` in the config
    release_memory:  whether the engine gives its memory back while the cell trains
    drain:           whether calls in flight end before new weights are loaded; else they go on under them
    keep_kv:         whether the engine was started to keep KV across versions
    """

    cell: str
    position: int
    incarnation: str
    engine: str
    engine_url: str
    capacity: int
    model_path: str
    scratch: str
    plan: ClassPlan
    secret: bytes = field(default=b"", repr=False)
    limits: LifeLimits = field(default_factory=LifeLimits)
    transfer: str = "tcp"
    transfer_host: str = "127.0.0.1"
    order: tuple[str, ...] = ()
    fanout: int = 0
    patience_s: float = 10.0
    drain: bool = False
    release_memory: bool = False
    keep_kv: bool = False
    health_s: float = 5.0
    poll_s: float = 0.5

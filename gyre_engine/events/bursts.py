"""The event on `commands` that lets a burst begin."""

from __future__ import annotations

from dataclasses import dataclass

from gyre_engine.events.envelope import Event, event


@event("begin-burst", topic="commands", key="run")
@dataclass(frozen=True, slots=True, kw_only=True)
class BeginBurst(Event):
    """The core may open the steps of the burst that follows `step` committed steps. Until then it waits, whatever is ready."""

    epoch: int
    number: int
    step: int
    reason: str
    water_level: int
    sampling_capacity: int

"""Every event type, its schema version, the msgpack codec and the upcasters.

One module a family of topics: `executions` (executions, tool-events, scores), `calls` (model-calls, trees), `cells` (cells,
commands, water-level), `bursts` (commands), `training` (trajectories, micro-steps, training), `reports` (training), `log` (runs,
dead-letters). `codec` turns them into bytes, `envelope` is what every record carries.
"""

from gyre_engine.events import bursts, calls, cells, executions, log, reports, training
from gyre_engine.events.codec import CodecError, Fields, Float32, Float64, Int32
from gyre_engine.events.envelope import (
    Event,
    Recorded,
    UnknownEvent,
    decode,
    derived_id,
    encode,
    event_types,
    new_id,
    now_us,
    upcast,
)

__all__ = [
    "CodecError",
    "Event",
    "Fields",
    "Float32",
    "Float64",
    "Int32",
    "Recorded",
    "UnknownEvent",
    "bursts",
    "calls",
    "cells",
    "decode",
    "derived_id",
    "encode",
    "event_types",
    "executions",
    "log",
    "new_id",
    "now_us",
    "reports",
    "training",
    "upcast",
]

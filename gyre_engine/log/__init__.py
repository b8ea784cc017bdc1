"""The log: the Log port, its implementations `memory` and `kafka`, and the Consumer base.

Light on purpose: import `gyre_engine.log.kafka` or `gyre_engine.log.memory` by name.
"""

from gyre_engine.log.port import (
    SINGLE_PARTITION,
    STRICT,
    TOPICS,
    Follower,
    Log,
    LogUnavailable,
    Offsets,
    Place,
    UnreadableEvent,
)

__all__ = [
    "SINGLE_PARTITION",
    "STRICT",
    "TOPICS",
    "Follower",
    "Log",
    "LogUnavailable",
    "Offsets",
    "Place",
    "UnreadableEvent",
]

"""How an execution ended and what follows from it: learning.md, 4, as two pure functions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from gyre_engine.events.executions import DiscardReason, Ending
from producers.runner.harnesses.port import Trouble


class Stopped(StrEnum):
    """Who ended the harness."""

    ITSELF = "itself"
    SERVED_TIME = "served-time"
    """Its own limit, in served time."""
    OVERALL_TIME = "overall-time"
    """The overall limit, in wall clock time."""
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known when a harness has ended. `said`: how it ended by its own account."""

    stopped: Stopped
    came_up: bool
    said: Ending | Trouble
    did_work: bool


def judge(facts: Facts) -> Ending | DiscardReason:
    """The row of the table of endings."""
    if facts.stopped is Stopped.CANCELLED:
        return DiscardReason.CANCELLED
    if not facts.came_up:
        return DiscardReason.ENVIRONMENT
    if facts.stopped is Stopped.OVERALL_TIME:
        return DiscardReason.OVERALL_TIMEOUT
    if facts.stopped is Stopped.SERVED_TIME:
        return Ending.HARNESS_TIMEOUT
    if isinstance(facts.said, Ending):
        return facts.said
    if facts.said is Trouble.ENDPOINT_LOST:
        return DiscardReason.LOST
    return Ending.HARNESS_CRASHED if facts.did_work else DiscardReason.CRASHED_WITHOUT_WORK


RESTART = "the runner ended while it ran"
"""Detail of a LOST that the runner itself caused: it is tried again whatever the budget."""

_RETRIES: Mapping[DiscardReason, int] = {DiscardReason.LOST: 1, DiscardReason.CRASHED_WITHOUT_WORK: 1}


def tried_again(reason: DiscardReason, before: int, attempts: int) -> bool:
    """Whether a new attempt follows. `before`: earlier attempts at this place with this reason; `attempts`: the budget."""
    if reason is DiscardReason.ENVIRONMENT:
        return before + 1 < attempts
    return before < min(_RETRIES.get(reason, 0), attempts - 1)

"""What a person is told at once and for good, beside a display that changes: a line an event.

reads     training
promises  what happened before the session is not told again
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gyre_engine.events import Recorded
from gyre_engine.events.training import CheckpointPassedOver
from gyre_engine.log import Offsets


@dataclass(frozen=True, slots=True)
class Notices:
    """Says the line of each event that calls for one. `since`: where the log ended when the session began."""

    since: Offsets
    say: Callable[[str], None]

    def see(self, record: Recorded) -> None:
        """Take one record into account."""
        new = record.offset >= self.since.get((record.topic, record.partition), 0)
        if new and isinstance(record.event, CheckpointPassedOver):
            self.say(in_words(record.event))


def in_words(event: CheckpointPassedOver) -> str:
    """Which checkpoint, what is wrong with it, and from which one the run goes on."""
    instead = f"the checkpoint of step {event.instead}" if event.instead else "the initial weights"
    wrong = f"the checkpoint of step {event.step} cannot be used: {event.reason}"
    return f"{wrong}; the run goes on from {instead}, and makes the steps after it again"

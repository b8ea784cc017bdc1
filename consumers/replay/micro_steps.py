"""The micro-steps of committed steps, read one step at a time: a run's own would not fit in memory.

reads     micro-steps, twice: once to note where each stands, then each step's part
"""

from __future__ import annotations

from collections.abc import Set

from gyre_engine.events.training import MicroStep
from gyre_engine.log import Log
from gyre_engine.training.ledger.history import CommittedStep

TOPIC = "micro-steps"


class LoggedMicroSteps:
    """Where the named micro-steps stand. Memory: their names and offsets, and what `of` last gave."""

    def __init__(self, log: Log, names: Set[str]) -> None:
        self._log = log
        self._offsets: dict[str, int] = {}
        for record in log.read(TOPIC) if names else ():
            if isinstance(record.event, MicroStep) and record.event.micro_step in names:
                self._offsets.setdefault(record.event.micro_step, record.offset)

    def of(self, step: CommittedStep) -> dict[str, MicroStep]:
        """Those that the step opened, by name; one that is not on the log is left out."""
        wanted = {self._offsets[name] for name in step.opened.micro_steps if name in self._offsets}
        if not wanted:
            return {}
        place = (TOPIC, 0)
        records = self._log.read(TOPIC, start={place: min(wanted)}, end={place: max(wanted) + 1})
        return {r.event.micro_step: r.event for r in records if r.offset in wanted and isinstance(r.event, MicroStep)}

"""The logged micro-steps, read a step at a time: those of a whole run would not fit in memory. For what makes steps again.

reads     micro-steps, onwards from the last one read: each once where steps are asked for in the order of the log
promises  finds what is on the log, in whatever order it stands
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gyre_engine.events import Recorded
from gyre_engine.events.training import MicroStep
from gyre_engine.log.port import Log

PLACE = ("micro-steps", 0)


class LoggedMicroSteps:
    """Memory: names and offsets of what was read, and what `of` last gave for as long as its caller keeps it."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._offsets: dict[str, int] = {}
        """Of each name's first record: a name is a hash of what it stands for, so all records of one say the same."""
        self._next = 0

    def of(self, names: Sequence[str]) -> dict[str, MicroStep]:
        """Those of these names, in this order; one that is not on the log is left out.

        Each call is a read of its own, as minutes may lie between two: no connection and nothing read ahead is kept that long.
        """
        found = self._again({self._offsets[name] for name in names if name in self._offsets})
        found |= self._further(set(names) - found.keys())
        return {name: found[name] for name in names if name in found}

    def _again(self, offsets: set[int]) -> dict[str, MicroStep]:
        if not offsets:
            return {}
        records = self._log.read(PLACE[0], start={PLACE: min(offsets)}, end={PLACE: max(offsets) + 1})
        return {event.micro_step: event for offset, event in _micro_steps(records) if offset in offsets}

    def _further(self, missing: set[str]) -> dict[str, MicroStep]:
        found: dict[str, MicroStep] = {}
        if not missing:
            return found
        for offset, event in _micro_steps(self._log.read(PLACE[0], start={PLACE: self._next})):
            self._next = offset + 1
            self._offsets.setdefault(event.micro_step, offset)
            if event.micro_step in missing:
                found.setdefault(event.micro_step, event)
            if len(found) == len(missing):
                break
        return found


def _micro_steps(records: Iterable[Recorded]) -> Iterable[tuple[int, MicroStep]]:
    return ((record.offset, record.event) for record in records if isinstance(record.event, MicroStep))

"""The list of runs: who started, with what, and how it ended (the compacted topic `<prefix>.runs`)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from gyre_engine.events import Event, Recorded
from gyre_engine.events.log import RunEnded, RunResumed, RunStarted
from gyre_engine.log.kafka import KafkaLog
from gyre_engine.log.names import RUNS, record_key
from gyre_engine.log.port import Log, Place


class NoSuchRun(LookupError):
    """The log knows no run of this name; the text names those it knows."""


@dataclass(frozen=True, slots=True)
class RunInfo:
    """One run as the log knows it. Times in microseconds; `ended` is None while it goes on."""

    run: str
    started_at: int
    started: RunStarted
    ended_at: int | None = None
    ended: RunEnded | None = None


def fold_runs(records: Iterable[Recorded]) -> dict[str, RunInfo]:
    """The runs that `records` of the topic `runs` describe, in order of their start. A later start replaces an earlier one."""
    starts: dict[str, Recorded] = {}
    ends: dict[str, Recorded] = {}
    for record in records:
        if isinstance(record.event, RunStarted):
            starts[record.event.run] = record
            ends.pop(record.event.run, None)
        elif isinstance(record.event, RunResumed):
            ends.pop(record.event.run, None)
        elif isinstance(record.event, RunEnded):
            ends[record.event.run] = record
    ordered = sorted(starts.items(), key=lambda item: (item[1].at, item[0]))
    return {run: _info(start, ends.get(run)) for run, start in ordered}


def list_runs(log: Log) -> list[RunInfo]:
    """Every run on the log of this prefix, the newest last. Any run's handle will do."""
    return list(fold_runs(log.read(RUNS)).values())


def find_run(log: Log, run: str = "latest") -> RunInfo:
    """The run of this name, or the newest. Raises NoSuchRun."""
    runs = list_runs(log)
    if run == "latest" and runs:
        return runs[-1]
    for info in runs:
        if info.run == run:
            return info
    known = ", ".join(info.run for info in runs[-5:]) or "none"
    raise NoSuchRun(f"no run {run!r} on this log (newest: {known})")


def start_run(log: Log, started: RunStarted, timeout: float = 30.0) -> Place:
    """Put a run on the list; the topics must be there (ensure_topics)."""
    return log.append(started).result(timeout)


def resume_run(log: Log, run: str, timeout: float = 30.0) -> Place:
    """Say that a run goes on."""
    return log.append(RunResumed(run=run)).result(timeout)


def end_run(log: Log, ended: RunEnded, timeout: float = 30.0) -> Place:
    """Note how a run ended."""
    return log.append(ended).result(timeout)


def forget_run(log: KafkaLog, info: RunInfo, timeout: float = 30.0) -> None:
    """Take a run off the list, by tombstones; topics.delete_run deletes its events."""
    events: list[Event] = [info.started, RunResumed(run=info.run), *([info.ended] if info.ended else [])]
    for future in [log.produce_raw(RUNS, record_key(event, info.run), None) for event in events]:
        future.result(timeout)


def _info(start: Recorded, end: Recorded | None) -> RunInfo:
    assert isinstance(start.event, RunStarted)
    ended = end.event if end is not None and isinstance(end.event, RunEnded) else None
    return RunInfo(start.event.run, start.at, start.event, end.at if end else None, ended)

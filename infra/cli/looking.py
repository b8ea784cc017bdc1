"""`gyre runs`, `gyre tail`, `gyre status`: look at what is on the log."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from gyre_engine.events import Recorded
from gyre_engine.log.consumer import Health
from gyre_engine.log.kafka import KafkaLog
from gyre_engine.log.port import Log
from gyre_engine.log.runs import RunInfo, list_runs
from infra.cli.errors import CommandError, nearest
from infra.cli.usage import READABLE
from infra.stack.health import reported
from infra.stack.launch import Launch
from infra.stack.layout import StackFolder
from infra.supervisor.spec import ProcessStatus, State
from infra.supervisor.state import read_state


def runs(log: KafkaLog, folder: StackFolder, console: Console) -> None:
    """A line a run, the newest last."""
    here, shared = _run_here(folder), _shares_a_broker(folder)
    rows = [(info.run, _when(info.started_at), outcome(info, here, shared=shared)) for info in list_runs(log)]
    if not console.is_terminal:
        for row in rows:
            print("\t".join(row))
        return
    table = Table("run", "started (UTC)", "outcome")
    for row in rows:
        table.add_row(*row)
    console.print(table)


def _run_here(folder: StackFolder) -> str:
    """The run that this folder's stack has now, or nothing."""
    state = read_state(folder.root)
    return str(state.facts.get("run", "")) if state is not None and state.serving else ""


def _shares_a_broker(folder: StackFolder) -> bool:
    """Whether runs of other folders may stand on this log: nothing here knows whether those go on."""
    return folder.launch.exists() and bool(Launch.load(folder).settings.kafka.bootstrap_servers)


def _when(at: int) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(at / 1e6))


def outcome(info: RunInfo, here: str, *, shared: bool = False) -> str:
    """How a run ended, or that it goes on. `here`: the run of this folder's stack; it is running whatever an earlier end says.

    shared:  other folders may run something on this log too
    """
    if info.run == here:
        return "running"
    if info.ended is not None:
        reason = " ".join(info.ended.reason.partition("\n")[0].split())  # earlier versions wrote several lines
        return f"{info.ended.outcome}, {info.ended.steps} steps" + (f": {reason}" if reason else "")
    end = "ended without a word (killed, or its machine went away)" + (", or running from another folder" if shared else "")
    return f"{end}; go on with `gyre run --resume {info.run}`"


def tail(log: Log, topic: str, *, execution: str, follow: bool) -> Iterator[str]:
    """The events of a topic as JSON lines; with `follow`, also those to come. `runs` has the events of all runs."""
    if topic not in READABLE:
        near = nearest(topic.replace("_", "-"), READABLE)
        raise CommandError(f"no topic {topic!r}.{near} There is: {', '.join(READABLE)}")
    if not follow:
        yield from (as_json(r) for r in log.read(topic) if _about(r, execution))
        return
    follower = log.follow([topic])
    try:
        while True:
            yield from (as_json(r) for r in follower.poll(1.0) if _about(r, execution))
    finally:
        follower.close()


def _about(record: Recorded, execution: str) -> bool:
    return not execution or getattr(record.event, "execution", "") == execution


def as_json(record: Recorded) -> str:
    """One event as a JSON object on one line."""
    head = {"type": record.event.TYPE, "partition": record.partition, "offset": record.offset, "at": record.at, "id": record.id}
    return json.dumps({**head, "cause": record.cause, **dataclasses.asdict(record.event)}, default=_plain)


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.tolist()
    return value.hex() if isinstance(value, bytes) else str(value)


COLUMNS = ("process", "state", "pid", "restarts", "lag", "last exit")
NUMBERS = ("pid", "restarts", "lag")


def status_rows(processes: Iterable[ProcessStatus], health: Mapping[str, Health]) -> list[tuple[str, ...]]:
    """COLUMNS of each process. The lag is empty for what is no consumer, and for one that does not run: it was said long ago."""
    return [
        (p.name, p.state.value, str(p.pid), str(p.restarts), str(health[p.name].lag) if _tells(p, health) else "", p.last_exit)
        for p in processes
    ]


def _tells(process: ProcessStatus, health: Mapping[str, Health]) -> bool:
    return process.name in health and process.state is State.RUNNING


def status(console: Console) -> int:
    """The processes of this folder's stack and its addresses; 0 where it runs. Off a terminal: tab-separated lines."""
    folder = StackFolder.here()
    state = read_state(folder.root)
    if state is None or not state.serving:
        raise CommandError(
            f"no stack runs in {folder.root}: `gyre run EXPERIMENT.toml` starts one, `gyre runs` lists what was run"
        )
    rows = status_rows(state.processes, reported(folder.health))
    if not console.is_terminal:
        for row in [*rows, *((name, str(value)) for name, value in state.facts.items())]:
            print("\t".join(row))
        return 0
    table = Table(caption="lag: events on the log that a consumer has yet to read", caption_justify="left")
    for name in COLUMNS:
        table.add_column(name, justify="right" if name in NUMBERS else "left")
    for row in rows:
        table.add_row(*row)
    console.print(table)
    for name, value in state.facts.items():
        console.print(f"{name}: {value}", highlight=False, soft_wrap=True)
    return 0

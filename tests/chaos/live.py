"""A run of real processes whose log is followed as it grows: a signal hits a process in the state that the log has just told."""

from __future__ import annotations

import os
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import psutil

from gyre_engine.events import Event
from gyre_engine.log.kafka import KafkaLog
from gyre_engine.log.settings import KafkaSettings
from tests.e2e.small_run import Gyre

TOPICS = ("cells", "commands", "training", "model-calls")
LIMIT_S = 240.0
"""The longest wait for what a test waits for."""

Chosen = Callable[[Event], str | None]
"""The process that an event points at, or None."""


@dataclass
class Live:
    """`follow` what is said from now on; `pid` of a process by its name."""

    program: Gyre
    process: subprocess.Popen[str]
    lines: list[str] = field(default_factory=list)

    def pid(self, name: str) -> int:
        """Of the life that runs now."""
        until = time.monotonic() + 60
        while time.monotonic() < until:
            for process in self.program.state()["processes"]:  # type: ignore[attr-defined]
                if process["name"] == name and process["pid"] and psutil.pid_exists(process["pid"]):
                    return int(process["pid"])
            time.sleep(0.05)
        raise AssertionError(f"{name} does not run")

    def signal(self, name: str, number: int) -> int:
        """Send it; the pid that it went to. A life that ends by itself just then is followed by another."""
        while True:
            pid = self.pid(name)
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                continue
            return pid

    @contextmanager
    def log(self) -> Iterator[KafkaLog]:
        facts: Any = {}
        until = time.monotonic() + 120
        while not {"run", "bootstrap_servers"} <= {name for name, value in facts.items() if value}:
            assert time.monotonic() < until and self.process.poll() is None, "".join(self.lines)
            time.sleep(0.1)
            if (self.program.folder / ".gyre" / "stack.json").exists():
                facts = self.program.state()["facts"]
        log = KafkaLog(KafkaSettings(str(facts["bootstrap_servers"])), str(facts["run"]))
        try:
            yield log
        finally:
            log.close()

    def output(self) -> str:
        return "".join(self.lines)


@contextmanager
def live(program: Gyre, *arguments: str) -> Iterator[Live]:
    """The run goes on until it ends by itself; where the test fails it is ended."""
    process = program.start(*arguments)
    said = process.stdout
    assert said is not None
    made = Live(program, process)
    reader = threading.Thread(target=lambda: made.lines.extend(said), daemon=True)
    reader.start()
    try:
        yield made
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait(30)
        reader.join(10)
        said.close()


@dataclass
class Ear:
    """Hears a run's log from where it stands on."""

    run: Live
    log: KafkaLog

    def __post_init__(self) -> None:
        self.follower = self.log.follow(TOPICS, from_end=True)

    def until(self, chosen: Callable[[Event], Any], what: str) -> Any:
        """What `chosen` makes of the first event that it makes something of."""
        limit = time.monotonic() + LIMIT_S
        while time.monotonic() < limit:
            for record in self.follower.poll(0.1):
                if (found := chosen(record.event)) is not None:
                    return found
            assert self.run.process.poll() is None, f"the run ended before {what}\n{self.run.output()}"
        raise AssertionError(f"nothing was heard of {what} for {LIMIT_S:.0f} s\n{self.run.output()}")

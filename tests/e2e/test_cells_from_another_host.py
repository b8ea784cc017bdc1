"""Cells that join a running run from another host, leave it again, and stay to its end: with nothing in common but the log."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from infra.stack.ports import free_ports
from infra.supervisor.state import read_state
from tests.e2e.small_run import Gyre, settings, write_experiment
from tests.e2e.test_run_and_replay import left_over
from tests.e2e.two_hosts import Host, impossible, two_hosts

WHY_NOT = impossible()
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def until(what: Callable[[], bool], running: subprocess.Popen[str], limit: float = 120.0) -> None:
    """Wait for it as long as `running` runs."""
    end = time.monotonic() + limit
    while not what():
        if running.poll() is not None or time.monotonic() > end:
            running.terminate()
            pytest.fail(f"it did not come; the program said:\n{running.communicate()[0]}")
        time.sleep(0.1)


class Near:
    """A run's own host, with its folder."""

    def __init__(self, folder: Path, host: Host) -> None:
        folder.mkdir()
        [self.port] = free_ports(1)
        self.program, self.host = Gyre(folder), host
        self.bootstrap, self.key = f"{host.address}:{self.port}", folder / ".gyre" / "cell-key"

    def begun(self) -> AbstractContextManager[subprocess.Popen[str]]:
        """A run of one cell of its own, that other hosts can reach."""
        address = self.host.address
        reached = (f"cells.host='{address}'", f"kafka.host='{address}'", f"kafka.port={self.port}")
        given = settings(*reached, "cells.count=1", "run.steps=1000")
        return self.started("run", str(write_experiment(self.program.folder)), *given)

    def started(self, *words: str) -> AbstractContextManager[subprocess.Popen[str]]:
        program = self.program
        return self.host.started(*program.command(*words), cwd=program.folder, env=program.environment)

    def ask(self, *words: str) -> str:
        return self.host.run(*self.program.command(*words), cwd=self.program.folder, env=self.program.environment)

    def said(self, *words: str) -> list[dict[str, object]]:
        """What a command answers in lines of JSON."""
        return [json.loads(line) for line in self.ask(*words).splitlines()]

    def state_of(self, cell: str) -> str:
        """By `gyre cells list`; empty where it is not there."""
        return str({row["cell"]: row["state"] for row in self.said("cells", "list", "--json")}.get(cell, ""))

    def goes_on(self) -> bool:
        """Whether its stack runs and says which run it is."""
        state = read_state(self.program.folder / ".gyre")
        return state is not None and state.serving and bool(state.facts.get("run"))


class Far:
    """A folder on the other host, with nothing of the run but a copy of its key."""

    def __init__(self, folder: Path, host: Host, near: Near) -> None:
        folder.mkdir()
        self.program, self.host, self.bootstrap = Gyre(folder), host, near.bootstrap
        shutil.copy(near.key, folder / "key")

    def cell(self, name: str) -> AbstractContextManager[subprocess.Popen[str]]:
        command = self.program.command(
            "cell", "start", "--bootstrap", self.bootstrap, "--host", self.host.address, "--key", "key", "--name", name
        )
        return self.host.started(*command, cwd=self.program.folder, env=self.program.environment)


def serves(events: list[dict[str, object]], cell: str) -> bool:
    """Whether it has sampled, with weights that came while it was there."""
    own = [event for event in events if event.get("cell") == cell]
    sampled = any(event["type"] == "cell-health" and event["generated_tokens"] for event in own)
    return sampled and any(event["type"] == "weights-loaded" for event in own)


def a_wrong_key_is_refused(far: Far) -> None:
    (far.program.folder / "key").write_text("f" * 64)
    with far.cell("stranger") as refused:
        assert "is --key the run's cell-key" in refused.communicate(timeout=120)[0]
        assert refused.returncode == 1


def one_comes_and_is_told_to_leave(near: Near, far: Far) -> None:
    with far.cell("guest") as guest:
        until(lambda: "guest" in near.ask("cells", "list"), guest)
        assert "guest has left" in near.ask("cells", "drain", "guest")
        said = guest.communicate(timeout=60)[0]
        assert (guest.returncode, "guest has left" in said) == (0, True), said


def another_serves_until_the_run_is_stopped(near: Near, far: Far, running: subprocess.Popen[str]) -> None:
    with far.cell("stays") as stays:
        until(lambda: serves(near.said("tail", "cells"), "stays"), stays)
        assert "cell-3: up" in near.ask("cells", "add")
        running.send_signal(signal.SIGINT)
        assert "gyre run --resume" in running.communicate(timeout=60)[0]
        said = stays.communicate(timeout=60)[0]
        assert (stays.returncode, "is over: stopped" in said) == (0, True), said


def it_comes_back_under_its_name_to_its_place(near: Near, far: Far, resumed: subprocess.Popen[str]) -> None:
    assert near.state_of("stays").endswith("has ended"), "nobody waits for a cell that ended with the run"
    with far.cell("stays") as again:
        until(lambda: near.state_of("stays") == "sampling", again)
        resumed.send_signal(signal.SIGINT)
        assert "gyre run --resume" in resumed.communicate(timeout=60)[0]
        assert "is over: stopped" in again.communicate(timeout=60)[0]


@pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT or "possible")
def test_a_cell_comes_from_another_host_leaves_and_another_stays_to_the_end(tmp_path: Path) -> None:
    with two_hosts() as (one, other):
        near = Near(tmp_path / "here", one)
        with near.begun() as running:
            until(near.goes_on, running)
            a_wrong_key_is_refused(Far(tmp_path / "wrong", other, near))
            far = Far(tmp_path / "far", other, near)
            one_comes_and_is_told_to_leave(near, far)
            another_serves_until_the_run_is_stopped(near, far, running)
        with near.started("run", "--resume", "latest") as resumed:
            until(near.goes_on, resumed)
            it_comes_back_under_its_name_to_its_place(near, far, resumed)
    here = near.program
    roles = [e["role"] for e in here.tail("cells") if e["type"] == "role-changed" and e["cell"] == "guest"]
    assert roles[-1] == "left"
    calls = [e for e in here.tail("model-calls") if e["type"] == "model-call"]
    assert {"cell-0", "stays"} <= {str(span["cell"]) for e in calls for span in e["weight_spans"]}  # type: ignore[attr-defined]
    assert "steps verified" in here("replay", "latest", "--verify")
    assert left_over(tmp_path) == []

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


class Far:
    """A folder on the other host, with nothing of the run but a copy of its key."""

    def __init__(self, folder: Path, host: Host, bootstrap: str, key: Path) -> None:
        folder.mkdir()
        self.program, self.host, self.bootstrap = Gyre(folder), host, bootstrap
        shutil.copy(key, folder / "key")

    def cell(self, name: str) -> AbstractContextManager[subprocess.Popen[str]]:
        command = self.program.command(
            "cell", "start", "--bootstrap", self.bootstrap, "--host", self.host.address, "--key", "key", "--name", name
        )
        return self.host.started(*command, cwd=self.program.folder, env=self.program.environment)


def goes_on(program: Gyre) -> bool:
    """Whether its stack runs and says which run it is."""
    state = read_state(program.folder / ".gyre")
    return state is not None and state.serving and bool(state.facts.get("run"))


def state_of(listed: str, cell: str) -> str:
    """Of `gyre cells list --json`."""
    found = {row["cell"]: row["state"] for row in map(json.loads, listed.splitlines())}
    return str(found.get(cell, ""))


def serves(events: list[dict[str, object]], cell: str) -> bool:
    """Whether it has sampled, with weights that came while it was there."""
    own = [event for event in events if event.get("cell") == cell]
    sampled = any(event["type"] == "cell-health" and event["generated_tokens"] for event in own)
    return sampled and any(event["type"] == "weights-loaded" for event in own)


@pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT or "possible")
def test_a_cell_comes_from_another_host_leaves_and_another_stays_to_the_end(tmp_path: Path) -> None:
    here = Gyre(tmp_path / "here")
    here.folder.mkdir()
    with two_hosts() as (one, other):
        [port] = free_ports(1)
        reached = (f"cells.host='{one.address}'", f"kafka.host='{one.address}'", f"kafka.port={port}")
        given = settings(*reached, "cells.count=1", "run.steps=1000")
        command = here.command("run", str(write_experiment(here.folder)), *given)

        def ask(*words: str) -> str:
            return one.run(*here.command(*words), cwd=here.folder, env=here.environment)

        def cells() -> list[dict[str, object]]:
            return [json.loads(line) for line in ask("tail", "cells").splitlines()]

        with one.started(*command, cwd=here.folder, env=here.environment) as running:
            until(lambda: goes_on(here), running)
            bootstrap, key = f"{one.address}:{port}", here.folder / ".gyre" / "cell-key"

            wrong = Far(tmp_path / "wrong", other, bootstrap, key)
            (wrong.program.folder / "key").write_text("f" * 64)
            with wrong.cell("stranger") as refused:
                assert "is --key the run's cell-key" in refused.communicate(timeout=120)[0]
                assert refused.returncode == 1

            far = Far(tmp_path / "far", other, bootstrap, key)
            with far.cell("guest") as guest:
                until(lambda: "guest" in ask("cells", "list"), guest)
                assert "guest has left" in ask("cells", "drain", "guest")
                said = guest.communicate(timeout=60)[0]
                assert (guest.returncode, "guest has left" in said) == (0, True), said

            with far.cell("stays") as stays:
                until(lambda: serves(cells(), "stays"), stays)
                assert "cell-3: up" in ask("cells", "add")
                running.send_signal(signal.SIGINT)
                assert "gyre run --resume" in running.communicate(timeout=60)[0]
                said = stays.communicate(timeout=60)[0]
                assert (stays.returncode, "is over: stopped" in said) == (0, True), said

        with one.started(*here.command("run", "--resume", "latest"), cwd=here.folder, env=here.environment) as resumed:
            until(lambda: goes_on(here), resumed)
            [stayed] = [json.loads(line) for line in ask("cells", "list", "--json").splitlines() if '"stays"' in line]
            assert stayed["state"].endswith("has ended"), "nobody waits for a cell that ended with the run"
            with far.cell("stays") as again:  # under its name, to its place
                until(lambda: state_of(ask("cells", "list", "--json"), "stays") == "sampling", again)
                resumed.send_signal(signal.SIGINT)
                assert "gyre run --resume" in resumed.communicate(timeout=60)[0]
                assert "is over: stopped" in again.communicate(timeout=60)[0]
    roles = [e["role"] for e in here.tail("cells") if e["type"] == "role-changed" and e["cell"] == "guest"]
    assert roles[-1] == "left"
    calls = [e for e in here.tail("model-calls") if e["type"] == "model-call"]
    assert {"cell-0", "stays"} <= {str(span["cell"]) for e in calls for span in e["weight_spans"]}  # type: ignore[attr-defined]
    assert "steps verified" in here("replay", "latest", "--verify")
    assert left_over(tmp_path) == []

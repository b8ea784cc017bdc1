"""A small run under a policy that the quickstart does not use: what it promises is on the log, and the run replays."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.small_run import Gyre, settings, write_experiment

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def ran(folder: Path, *given: str) -> Gyre:
    program = Gyre(folder)
    program("run", str(write_experiment(folder)), *settings(*given), limit=540)
    assert "verified" in program("replay", "latest", "--verify")
    return program


def told(program: Gyre) -> list[tuple[object, object]]:
    return [(e["cell"], e["to"]) for e in program.tail("commands") if e["type"] == "switch-role"]


def test_async_trains_with_all_cells_while_a_standalone_pool_samples(tmp_path: Path) -> None:
    program = ran(tmp_path, "schedule.policy='async'", "schedule.training_cells=2", "cells.count=2", "cells.standalone=1")
    assert told(program) == [("cell-0", "training"), ("cell-1", "training")]
    calls = [e for e in program.tail("model-calls") if e["type"] == "model-call"]
    assert calls
    joined = {e["cell"] for e in program.tail("training") if e["type"] == "member-joined"}
    assert joined <= {"cell-0", "cell-1"}

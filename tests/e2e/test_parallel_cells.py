"""Runs whose cells have two trainer processes each: they train, survive a rank's death, and their replays agree byte for byte."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import psutil
import pytest

from tests.e2e.small_run import Gyre, settings, write_experiment

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def trainer_of(program: Gyre, cell: str) -> psutil.Process:
    [pid] = [p["pid"] for p in program.state()["processes"] if p["name"] == f"{cell}-trainer"]  # type: ignore[attr-defined]
    return psutil.Process(pid)


def test_a_run_on_cells_that_share_micro_steps_trains_and_replays(tmp_path: Path) -> None:
    program = Gyre(tmp_path)
    program("run", str(write_experiment(tmp_path)), *settings("cells.count=2", "cells.data_parallel=2"), limit=600)
    assert "2 steps verified" in program("replay", "latest", "--verify", limit=300)


def test_a_core_whose_second_stage_is_killed_comes_back_and_the_run_replays(tmp_path: Path) -> None:
    program = Gyre(tmp_path)
    given = settings("run.steps=3", "cells.count=2", "cells.pipeline_parallel=2")
    process = program.start("run", str(write_experiment(tmp_path)), *given)
    assert process.stdout is not None
    printed, killed = [], None
    for line in process.stdout:
        printed.append(line)
        if killed is None and line.startswith("step 1/"):
            [killed] = trainer_of(program, "cell-0").children()
            os.kill(killed.pid, signal.SIGKILL)
    process.stdout.close()
    assert process.wait(30) == 0, "".join(printed)
    assert killed is not None
    assert "cell-0-trainer: ended (ended with status 70)" in "".join(printed)
    assert "3 steps verified" in program("replay", "latest", "--verify", limit=300)

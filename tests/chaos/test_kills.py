"""kill -9 of any process but the broker and the core's trainer, in the middle of a run: nothing is lost, nothing counts twice."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import psutil
import pytest

from tests.e2e.small_run import Gyre, settings, write_experiment

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

VICTIMS = (
    "proxy", "runner", "streams", "scheduler", "scoring", "reporting", "analytics", "cell-0-agent", "cell-0-engine",
    "cell-1-engine", "cell-1-trainer", "cell-2-agent",
)  # fmt: skip
STEPS = 6


def pid_of(program: Gyre, name: str) -> int:
    """The pid that the stack's file names, once the process runs."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        for process in program.state()["processes"]:  # type: ignore[attr-defined]
            if process["name"] == name and process["pid"] and psutil.pid_exists(process["pid"]):
                return int(process["pid"])
    raise AssertionError(f"{name} does not run")


def killed_in_turn(program: Gyre, process: subprocess.Popen[str], victims: list[str]) -> str:
    """Kill the next victim whenever the run has printed something new about its progress; all output."""
    assert process.stdout is not None
    printed = []
    for line in process.stdout:
        printed.append(line)
        if line.startswith("step ") and victims and not line.startswith("step 0/"):
            os.kill(pid_of(program, victims.pop(0)), signal.SIGKILL)
            if victims:
                os.kill(pid_of(program, victims.pop(0)), signal.SIGKILL)
    process.stdout.close()
    process.wait(30)
    return "".join(printed)


def test_each_process_is_killed_once_and_the_run_is_as_if_nobody_had_been(tmp_path: Path) -> None:
    program = Gyre(tmp_path)
    victims = list(VICTIMS)
    process = program.start("run", str(write_experiment(tmp_path)), *settings(f"run.steps={STEPS}"))
    output = killed_in_turn(program, process, victims)
    assert process.returncode == 0, output
    assert victims == []
    assert_as_if_nobody_had_been_killed(program)


def test_the_cores_trainer_is_killed_in_the_middle_of_steps_and_comes_back(tmp_path: Path) -> None:
    """Beyond what is promised of kills: it restores the newest checkpoint and makes the committed steps after it again."""
    program = Gyre(tmp_path)
    victims = ["cell-0-trainer", "cell-1-trainer", "cell-0-trainer", "cell-2-trainer"]
    given = settings(f"run.steps={STEPS}", "run.checkpoint_every=2", "eval.every=2", "eval.tasks=2", "eval.samples=1")
    process = program.start("run", str(write_experiment(tmp_path)), *given)
    output = killed_in_turn(program, process, victims)
    assert process.returncode == 0, output
    assert victims == []
    assert_as_if_nobody_had_been_killed(program)


def assert_as_if_nobody_had_been_killed(program: Gyre, steps: int = STEPS) -> None:
    events = program.tail("executions")
    places = {(e["group"], e["index"]) for e in events if e["type"] == "dispatched" and not e["evaluation"]}
    assert len(places) == steps * 3 * 4
    scored = {e["execution"] for e in program.tail("scores") if e["type"] == "scored"}
    scored_places = {
        (e["group"], e["index"]) for e in events if e["type"] == "dispatched" and not e["evaluation"] and e["execution"] in scored
    }
    assert scored_places == places
    training = program.tail("training")
    opened = {(e["step"], e["attempt"]): e["micro_steps"] for e in training if e["type"] == "step-opened"}
    commits = [e for e in training if e["type"] == "step-committed"]
    assert [c["step"] for c in commits] == list(range(1, steps + 1))
    assert {e["step"] for e in training if e["type"] == "step-reported"} == set(range(1, steps + 1))
    for commit in commits:
        merged = {tuple(m) for m in commit["merge_order"]}  # type: ignore[attr-defined]
        counted = [
            m for e in training if e["type"] == "sealed" and (e["step"], e["attempt"]) == (commit["step"], commit["attempt"])
            and (e["cell"], e["member_epoch"]) in merged for m in e["micro_steps"]  # type: ignore[attr-defined]
        ]  # fmt: skip
        assert sorted(counted) == sorted(opened[commit["step"], commit["attempt"]])  # type: ignore[call-overload]
    assert f"{steps} steps verified" in program("replay", "latest", "--verify", limit=300)
    calls = sum(e["type"] == "model-call" for e in program.tail("model-calls"))
    assert program("sql", "select count() from model_calls where type = 'model-call'").strip() == str(calls)


def test_nothing_outlives_a_killed_supervisor(tmp_path: Path) -> None:
    program = Gyre(tmp_path)
    process = program.start("run", str(write_experiment(tmp_path)), *settings("run.steps=50"))
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("step 1/"):
            break
    children = psutil.Process(process.pid).children(recursive=True)
    assert len(children) > 10
    process.kill()
    process.communicate(timeout=10)
    gone, alive = psutil.wait_procs(children, timeout=10)
    assert alive == []
    assert len(gone) == len(children)


def test_a_run_whose_supervisor_was_killed_is_resumed_and_nothing_is_trained_twice(tmp_path: Path) -> None:
    program = Gyre(tmp_path)
    process = program.start("run", str(write_experiment(tmp_path)), *settings("run.steps=4", "run.checkpoint_every=2"))
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("step 2/"):
            break
    process.kill()
    process.communicate(timeout=30)
    program("run", "--resume", "latest", limit=400)
    admitted = [e["group"] for e in program.tail("trajectories")]
    assert sorted(admitted) == sorted(set(admitted))
    training = program.tail("training")
    commits = [e for e in training if e["type"] == "step-committed"]
    assert [c["step"] for c in commits] == [1, 2, 3, 4]
    opened = {(e["step"], e["attempt"]): e["groups"] for e in training if e["type"] == "step-opened"}
    trained = [g for c in commits for g in opened[c["step"], c["attempt"]]]  # type: ignore[attr-defined]
    assert sorted(trained) == sorted(admitted)
    assert len(trained) == 4 * 3
    assert "4 steps verified" in program("replay", "latest", "--verify", limit=300)

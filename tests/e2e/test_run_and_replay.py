"""A whole run with every part real: it trains, it can be asked, it replays, it leaves nothing behind."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.e2e.small_run import Gyre, settings, write_experiment

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def gyre(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gyre]:
    folder = tmp_path_factory.mktemp("run")
    program = Gyre(folder)
    program("run", str(write_experiment(folder)), *settings("publish.fanout=1"), limit=540)
    yield program
    assert left_over(folder) == []


def left_over(folder: Path) -> list[str]:
    """Command lines of processes whose environment or arguments name the folder."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        line = " ".join(process.info["cmdline"] or [])
        if str(folder) in line and process.pid != os.getpid():
            found.append(line)
    return found


def test_every_step_is_committed_and_every_execution_ends_once(gyre: Gyre) -> None:
    events = gyre.tail("executions")
    dispatched = {e["execution"] for e in events if e["type"] == "dispatched"}
    terminal = [e["execution"] for e in events if e["type"] in ("finished", "discarded")]
    assert sorted(terminal) == sorted(dispatched)
    commits = [e["step"] for e in gyre.tail("training") if e["type"] == "step-committed"]
    assert commits == [1, 2]


def test_each_sampled_token_is_delivered_and_has_its_log_probability(gyre: Gyre) -> None:
    calls = [e for e in gyre.tail("model-calls") if e["type"] == "model-call"]
    assert calls
    assert all(len(c["output_ids"]) == len(c["logprobs"]) for c in calls)  # type: ignore[arg-type]
    trees = [e for e in gyre.tail("trees") if e["type"] == "tree-closed"]
    assert all(t["delivered"] == 1.0 for t in trees)
    assert sum(t["sampled_tokens"] for t in trees) == sum(len(c["output_ids"]) for c in calls)  # type: ignore[misc, arg-type]


@pytest.mark.parametrize("topic", ["model-calls", "tool-events", "executions", "scores", "trees", "trajectories"])
def test_no_two_events_share_an_id(gyre: Gyre, topic: str) -> None:
    """Executions of one query may do the very same; their events are still others."""
    ids = [e["id"] for e in gyre.tail(topic)]
    assert len(ids) == len(set(ids))


def test_micro_steps_count_once_in_each_step(gyre: Gyre) -> None:
    events = gyre.tail("training")
    opened = {(e["step"], e["attempt"]): e["micro_steps"] for e in events if e["type"] == "step-opened"}
    for commit in (e for e in events if e["type"] == "step-committed"):
        merged = [tuple(m) for m in commit["merge_order"]]  # type: ignore[attr-defined]
        seals = [
            e for e in events
            if e["type"] == "sealed" and (e["step"], e["attempt"]) == (commit["step"], commit["attempt"])
            and (e["cell"], e["member_epoch"]) in merged
        ]  # fmt: skip
        counted = [m for seal in seals for m in seal["micro_steps"]]  # type: ignore[attr-defined]
        assert sorted(counted) == sorted(opened[commit["step"], commit["attempt"]])  # type: ignore[call-overload]


def test_engine_and_trainer_agree_at_every_publication(gyre: Gyre) -> None:
    gaps = [e for e in gyre.tail("cells") if e["type"] == "probe-gap"]
    assert gaps
    assert max(g["gap_max"] for g in gaps) <= 1e-4  # type: ignore[type-var]


def test_cells_pass_on_the_published_weights_and_no_others(gyre: Gyre) -> None:
    """A chain of three (fan-out 1): the first two hold what they have read for the next, the last for nobody."""
    published = {e["version"]: e["weights_hash"] for e in gyre.tail("training") if e["type"] == "published"}
    events = [e for e in gyre.tail("cells") if e["type"] in ("weights-held", "weights-loaded")]
    assert all(e["weights_hash"] == published[e["version"]] for e in events)
    assert {e["cell"] for e in events if e["type"] == "weights-held"} == {"cell-0", "cell-1"}
    assert {e["cell"] for e in events if e["type"] == "weights-loaded"} == {"cell-0", "cell-1", "cell-2"}


def test_sql_counts_what_the_log_holds(gyre: Gyre) -> None:
    calls = sum(e["type"] == "model-call" for e in gyre.tail("model-calls"))
    assert gyre("sql", "select count() from model_calls where type = 'model-call'").strip() == str(calls)
    roles = gyre("sql", "select distinct role from role_timeline order by role").split()
    assert {"sampling", "training"} <= set(roles)


def test_the_replay_makes_the_same_weights(gyre: Gyre) -> None:
    printed = gyre("replay", "latest", "--verify", limit=240)
    assert "2 steps verified" in printed


def test_a_scorer_of_ones_own_scores_the_history(gyre: Gyre) -> None:
    (gyre.folder / "my_scorers.py").write_text(
        "from consumers.scoring.port import Score, ScoredExecution\n"
        "class Size:\n"
        "    name, version = 'size', '1'\n"
        "    async def score(self, execution: ScoredExecution) -> Score:\n"
        "        return Score(float(len(execution.work())))\n"
    )
    finished = sum(e["type"] == "finished" for e in gyre.tail("executions"))
    assert f"size 1: {finished} scored, 0 failed, 0 scored before" in gyre("score", "my_scorers:Size")
    assert f"size 1: 0 scored, 0 failed, {finished} scored before" in gyre("score", "my_scorers:Size")


def test_ctrl_c_ends_everything_within_ten_seconds(tmp_path: Path) -> None:
    program = Gyre(tmp_path)
    process = program.start("run", str(write_experiment(tmp_path)), *settings("run.steps=50"))
    _until_committed(program, process)
    children = psutil.Process(process.pid).children(recursive=True)
    began = time.monotonic()
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=30)
    took = time.monotonic() - began
    assert process.returncode == 128 + signal.SIGINT, output
    assert re.search(r"interrupted: (\S+) was stopped in order; `gyre run --resume \1` goes on with it", output), output
    assert took < 10.0
    assert [c for c in children if c.is_running() and c.status() != psutil.STATUS_ZOMBIE] == []


def _until_committed(program: Gyre, process: subprocess.Popen[str]) -> None:
    """Read the run's output until a step is committed."""
    assert process.stdout is not None
    seen = []
    for line in process.stdout:
        seen.append(line)
        if line.startswith("step 1/"):
            return
    raise AssertionError("the run ended:\n" + "".join(seen))

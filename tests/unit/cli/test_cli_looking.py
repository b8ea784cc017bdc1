"""What the commands that look say: how a run ended, which topics there are, how far a consumer is behind."""

import json

import pytest

from gyre_engine.events.log import RunEnded, RunStarted
from gyre_engine.log.consumer import Health
from gyre_engine.log.memory import MemoryLog
from gyre_engine.log.runs import RunInfo
from infra.cli.errors import CommandError
from infra.cli.looking import outcome, status_rows, tail
from infra.cli.running import REASON_LIMIT, reason_of
from infra.supervisor.spec import ProcessStatus, State


def started(run: str) -> RunStarted:
    return RunStarted(
        run=run, config="{}", config_hash="c", versions={}, partitions={}, fingerprint={}, initial_weights="",
        initial_weights_hash="", topic_prefix="gyre",
    )  # fmt: skip


def info(ended: RunEnded | None = None) -> RunInfo:
    return RunInfo("r-1", 1, started("r-1"), None if ended is None else 2, ended)


GONE = "ended without a word (killed, or its machine went away); go on with `gyre run --resume r-1`"


def test_the_run_that_this_folders_stack_has_is_running():
    assert outcome(info(), "r-1") == "running"


def test_a_run_without_an_end_that_nobody_runs_here_can_be_resumed():
    assert outcome(info(), "") == GONE
    assert outcome(info(), "r-2") == GONE


def test_on_a_shared_log_it_may_run_elsewhere():
    assert outcome(info(), "", shared=True) == GONE.replace(";", ", or running from another folder;")


def test_an_ended_run_tells_its_end_unless_it_was_resumed_here():
    ended = RunEnded(run="r-1", outcome="stopped", reason="interrupted", steps=3)
    assert outcome(info(ended), "") == "stopped, 3 steps: interrupted"
    assert outcome(info(ended), "r-1") == "running"


def test_a_reason_of_several_lines_as_earlier_versions_wrote_it_is_told_by_its_first():
    reason = "ProcessGaveUp: proxy\tended with status 1; it is given up.\nw__\n    raise ValueError(\n"
    ended = RunEnded(run="r-1", outcome="failed", reason=reason, steps=0)
    assert outcome(info(ended), "") == "failed, 0 steps: ProcessGaveUp: proxy ended with status 1; it is given up."


def test_the_reason_of_an_end_is_one_line_of_whole_words():
    assert reason_of(ValueError("two\nlines\tand a tab")) == "ValueError: two lines and a tab"
    long = reason_of(ValueError("words " * 1000))
    assert long.endswith("words ...")
    assert len(long) <= REASON_LIMIT


def test_the_topic_of_all_runs_can_be_looked_at():
    log = MemoryLog(run="r-1")
    log.append(started("r-1"))
    log.append(RunEnded(run="r-1", outcome="completed", reason="", steps=2))
    lines = [json.loads(line) for line in tail(log, "runs", execution="", follow=False)]
    assert [(line["type"], line["run"]) for line in lines] == [("run-started", "r-1"), ("run-ended", "r-1")]


@pytest.mark.parametrize(("wrong", "near"), [("rums", "runs"), ("model_calls", "model-calls"), ("excutions", "executions")])
def test_an_unknown_topic_gets_the_nearest_and_all_there_are(wrong, near):
    with pytest.raises(CommandError, match=rf"no topic '{wrong}'. Did you mean {near}\? There is: .*dead-letters, runs"):
        next(tail(MemoryLog(run="r-1"), wrong, execution="", follow=False))


def test_the_lag_is_that_of_a_consumer_that_runs():
    """What a consumer said before it ended is no lag of now; other processes have none."""
    health = {name: Health(name, True, 10, 0, 7, 0) for name in ("analytics", "scoring")}
    processes = [
        ProcessStatus("broker", State.RUNNING, pid=1),
        ProcessStatus("analytics", State.RUNNING, pid=2, restarts=1, last_exit="status 1"),
        ProcessStatus("scoring", State.FAILED, pid=0, last_exit="signal 9"),
    ]
    assert status_rows(processes, health) == [
        ("broker", "running", "1", "0", "", ""),
        ("analytics", "running", "2", "1", "7", "status 1"),
        ("scoring", "failed", "0", "0", "", "signal 9"),
    ]

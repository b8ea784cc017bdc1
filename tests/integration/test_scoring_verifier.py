"""The verifier in real sandboxes: what it reads, what it refuses to believe, and that a broken evaluation is never a 0."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from consumers.scoring.port import Score, ScoredExecution
from consumers.scoring.process import ScoringSettings, score_history
from consumers.scoring.scoring import Scoring
from consumers.scoring.verifier import VerifierScorer, VerifierSettings
from gyre_engine.events.executions import (
    Discarded,
    DiscardReason,
    Dispatched,
    Ending,
    EvaluationFailed,
    Finished,
    Scored,
)
from gyre_engine.log.memory import MemoryLog
from gyre_engine.sandbox import Isolation, SandboxUnavailable, sandbox_available
from gyre_engine.tasks import Source, load_catalog, prepare, read_task
from gyre_engine.work_product import pack
from tests.integration.runner_fakes import TEST_SH, write_task

try:
    sandbox_available()
except SandboxUnavailable as missing:
    pytest.skip(str(missing), allow_module_level=True)


def finished_work(
    log: MemoryLog, folder: Path, files: dict[str, str], *, ending: Ending = Ending.COMPLETED, name: str = "g0.0.0"
) -> None:
    """Puts a finished execution of the task `one` on the log whose agent left `files` (paths from /; a value `-> X` is a link)."""
    root = folder / f"left-{name}"
    prepare(read_task(folder / "tasks" / "one"), root)
    for path, content in files.items():
        target = root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        if content.startswith("-> "):
            target.symlink_to(content[3:])
        else:
            target.write_text(content)
    work = pack(root)
    kept = folder / f"{name}.tar"
    kept.write_bytes(work.data)
    group, index, attempt = name.rsplit(".", 2)
    dispatched = Dispatched(
        execution=name, group=group, index=int(index), attempt=int(attempt), group_size=1, group_number=0, class_number=0, query="one",
        source="tasks", split="train", harness="mini", weight_version=0,
    )  # fmt: skip
    finished = Finished(
        execution=name, ending=ending, work_url=f"file://{kept}", work_hash=work.sha256, did_work=bool(files), served_us=1, wall_us=1,
        detail="; ".join(f"left out {d}" for d in work.dropped),
    )  # fmt: skip
    log.append_all([dispatched, finished])


def verifier(folder: Path, **settings: object) -> VerifierScorer:
    return VerifierScorer(VerifierSettings(sandbox_available(), folder / "scratch", **settings))  # type: ignore[arg-type]


async def scored(log: MemoryLog, folder: Path, **settings: object) -> list[Scored | EvaluationFailed]:
    """All score events after one pass of the verifier."""
    catalog = load_catalog([Source("tasks", folder / "tasks")])
    await Scoring(log, verifier(folder, **settings), catalog).score(follow=False)
    return [r.event for r in log.read("scores")]  # type: ignore[misc]


async def one_score(
    tmp_path: Path, test: str, files: dict[str, str] | None = None, **settings: object
) -> Scored | EvaluationFailed:
    write_task(tmp_path / "tasks" / "one", test=test)
    log = MemoryLog()
    finished_work(log, tmp_path, {"app/answer.txt": "42"} if files is None else files)
    return (await scored(log, tmp_path, **settings))[-1]


async def test_the_tasks_own_tests_decide(tmp_path: Path) -> None:
    right = await one_score(tmp_path / "a", TEST_SH)
    wrong = await one_score(tmp_path / "b", TEST_SH, {"app/answer.txt": "41"})
    assert isinstance(right, Scored) and right.reward == 1.0 and right.flags == ()
    assert isinstance(wrong, Scored) and wrong.reward == 0.0


async def test_half_of_the_work_at_the_harness_time_out_is_half_of_the_reward(tmp_path: Path) -> None:
    """C53."""
    write_task(tmp_path / "tasks" / "one", test="#!/bin/sh\nls *.py | wc -l | awk '{print $1/2}' >/logs/verifier/reward.txt\n")
    log = MemoryLog()
    finished_work(log, tmp_path, {"app/a.py": ""}, ending=Ending.HARNESS_TIMEOUT)
    events = await scored(log, tmp_path)
    assert len(events) == 1, events
    score = events[0]
    assert isinstance(score, Scored) and score.reward == 0.5


async def test_a_verifier_that_fails_is_tried_again_and_counted_once(tmp_path: Path) -> None:
    """C53: the time-out and the verifier's error are one failed evaluation, with two attempts."""
    write_task(tmp_path / "tasks" / "one", test="#!/bin/sh\nexit 3\n")
    log = MemoryLog()
    finished_work(log, tmp_path, {"app/a.py": ""}, ending=Ending.HARNESS_TIMEOUT)
    events = await scored(log, tmp_path)
    assert [(type(e), e.evaluation_attempt, getattr(e, "final", None)) for e in events] == [
        (EvaluationFailed, 1, False),
        (EvaluationFailed, 2, True),
    ]
    assert "exit code 3" in events[0].reason  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("script", "says"),
    [
        ("echo nonsense >/logs/verifier/reward.txt", "does not hold a number"),
        (": >/logs/verifier/reward.txt", "does not hold a number"),
        ("echo nan >/logs/verifier/reward.txt", "not between 0 and 1"),
        ("echo 7 >/logs/verifier/reward.txt", "not between 0 and 1"),
        ('echo \'{"a": 1, "b": 0}\' >/logs/verifier/reward.json', "set scoring.weights"),
        ("echo '[1]' >/logs/verifier/reward.json", "must be an object"),
        ("ln -s /etc/passwd /logs/verifier/reward.txt", "plain file"),
        ("rmdir /logs/verifier && ln -s /app /logs/verifier && echo 1 >/app/reward.txt", "log folder"),
        ("mkfifo /logs/verifier/reward.txt", "plain file"),
        ("kill -9 $$", "signal 9"),
        ("echo 1 >/dev/full || true; printf '' >/logs/verifier/reward.txt", "does not hold a number"),
    ],
)
async def test_nonsense_is_a_failed_evaluation_and_never_a_zero(tmp_path: Path, script: str, says: str) -> None:
    event = await one_score(tmp_path, f"#!/bin/sh\n{script}\n")
    assert isinstance(event, EvaluationFailed) and event.final
    assert says in event.reason


async def test_a_verifier_that_hangs_is_ended_at_its_limit(tmp_path: Path) -> None:
    write_task(tmp_path / "tasks" / "one", test="#!/bin/sh\nsleep 60\n", toml="[verifier]\ntimeout_sec = 0.3\n")
    log = MemoryLog()
    finished_work(log, tmp_path, {"app/answer.txt": "42"})
    events = await scored(log, tmp_path)
    assert all(isinstance(e, EvaluationFailed) and "did not end within 0.3 s" in e.reason for e in events)


async def test_several_rewards_are_weighted(tmp_path: Path) -> None:
    """0.75 x 1 + 0.25 x 0.5 = 0.875."""
    event = await one_score(
        tmp_path,
        '#!/bin/sh\necho \'{"tests": 1, "style": 0.5}\' >/logs/verifier/reward.json\n',
        weights={"tests": 0.75, "style": 0.25},
    )
    assert isinstance(event, Scored)
    assert event.reward == 0.875 and event.rewards == {"tests": 1.0, "style": 0.5}


@pytest.mark.parametrize("logs", [{"logs/verifier/reward.txt": "1", "logs/agent": "-> /"}, {"logs/verifier": "-> /app"}])
async def test_an_agent_that_forges_is_not_paid_and_flagged(tmp_path: Path, logs: dict[str, str]) -> None:
    """C50: a reward file, a planted conftest.py, and the log folder as a link; the tests fail."""
    test = "#!/bin/sh\n[ -e conftest.py ] && echo 1 >/logs/verifier/reward.txt\n"
    test += "[ -e /logs/verifier/reward.txt ] || echo 0 >/logs/verifier/reward.txt\n"
    files = {**logs, "app/conftest.py": "import os", "app/reward.txt": "1", "app/answers": "-> /tests"}
    event = await one_score(tmp_path, test, files)
    assert isinstance(event, Scored) and event.reward == 0.0
    flags = " | ".join(event.flags)
    assert "planted app/conftest.py" in flags and next(iter(logs)) in flags
    assert "app/answers: a link to /tests" in flags


async def test_the_tasks_own_conftest_is_put_back(tmp_path: Path) -> None:
    task = write_task(tmp_path / "tasks" / "one", test="#!/bin/sh\ngrep -c theirs conftest.py >/logs/verifier/reward.txt\n",
                      dockerfile="FROM x\nWORKDIR /app\nCOPY conftest.py /app/\n")  # fmt: skip
    (task / "environment" / "conftest.py").write_text("# theirs\n")
    log = MemoryLog()
    root = tmp_path / "left"
    prepare(read_task(task), root)
    finished_work(log, tmp_path, {"app/conftest.py": "# forged\n"})
    (event,) = await scored(log, tmp_path)
    assert isinstance(event, Scored) and event.reward == 1.0


async def test_the_work_cannot_change_the_tests_or_reach_the_network(tmp_path: Path) -> None:
    test = (
        "#!/bin/sh\n(echo forged >/tests/test.sh) 2>/dev/null && exit 9\n"
        "[ $(tail -n +3 /proc/net/dev | wc -l) = 1 ] && echo 1 >/logs/verifier/reward.txt\n"
    )
    event = await one_score(tmp_path, test)
    assert isinstance(event, Scored) and event.reward == 1.0


async def test_nothing_left_is_zero_without_a_run(tmp_path: Path) -> None:
    event = await one_score(tmp_path, "#!/bin/sh\necho 1 >/logs/verifier/reward.txt\n", {})
    assert isinstance(event, Scored) and event.reward == 0.0 and event.flags == ("nothing-left",)


async def test_work_that_was_tampered_with_in_the_store_is_not_scored(tmp_path: Path) -> None:
    write_task(tmp_path / "tasks" / "one")
    log = MemoryLog()
    finished_work(log, tmp_path, {"app/answer.txt": "42"})
    (tmp_path / "g0.0.0.tar").write_bytes(b"other bytes")
    events = await scored(log, tmp_path)
    assert all(isinstance(e, EvaluationFailed) and "hash differs" in e.reason for e in events)


@pytest.mark.skipif(os.geteuid() != 0 or not Path("/dev/shm").is_dir(), reason="needs to mount a small file system")
async def test_a_full_disk_is_a_failed_evaluation(tmp_path: Path) -> None:
    """C55: the copy does not fit into a file system of 64 kB."""
    import subprocess

    write_task(tmp_path / "tasks" / "one")
    log = MemoryLog()
    finished_work(log, tmp_path, {"app/answer.txt": "42" * 100_000})
    (tmp_path / "scratch").mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", tmp_path / "scratch"], check=False)
    if done.returncode:
        pytest.skip("mounting is not allowed here")
    try:
        events = await scored(log, tmp_path)
    finally:
        subprocess.run(["umount", tmp_path / "scratch"], check=True)
    assert all(isinstance(e, EvaluationFailed) and "No space left" in e.reason for e in events)


async def test_an_environment_that_never_came_up_gets_a_placeholder(tmp_path: Path) -> None:
    write_task(tmp_path / "tasks" / "one")
    log = MemoryLog()
    reason = DiscardReason.ENVIRONMENT
    log.append_all([Discarded(execution="g0.0.0", reason=reason, final=False, wall_us=1),
                    Discarded(execution="g0.0.1", reason=reason, final=True, wall_us=1),
                    Discarded(execution="g0.1.0", reason=DiscardReason.OVERALL_TIMEOUT, final=True, wall_us=1)])  # fmt: skip
    (event,) = await scored(log, tmp_path)
    assert isinstance(event, Scored) and event.execution == "g0.0.1" and event.placeholder and event.reward == 0.0


async def test_scoring_again_and_after_a_restart_adds_nothing(tmp_path: Path) -> None:
    write_task(tmp_path / "tasks" / "one")
    log = MemoryLog()
    finished_work(log, tmp_path, {"app/answer.txt": "42"})
    first = await scored(log, tmp_path)
    finished_work(log, tmp_path, {"app/answer.txt": "42"}, name="g0.1.0")
    both = await scored(log, tmp_path)
    assert (len(first), len(both)) == (1, 2)
    ids = [r.id for r in log.read("scores")]
    assert len(set(ids)) == 2


class Longest:
    """A scorer of somebody's own: half of the reward for any answer at all."""

    name, version = "longest", "3"

    async def score(self, execution: ScoredExecution) -> Score:
        if execution.dispatched.query != "one":
            raise RuntimeError("an unknown task")
        return Score(0.5 if b"42" in execution.work() else 0.0)


def test_a_custom_scorer_runs_over_history_beside_the_verifier(tmp_path: Path) -> None:
    write_task(tmp_path / "tasks" / "one")
    log = MemoryLog()
    finished_work(log, tmp_path, {"app/answer.txt": "42"})
    settings = ScoringSettings(sources=(Source("tasks", tmp_path / "tasks"),), scratch=tmp_path / "scratch")
    assert score_history(log, Longest(), settings).scored == 1
    again = score_history(log, Longest(), settings)
    assert (again.scored, again.skipped) == (0, 1)
    (event,) = [r.event for r in log.read("scores")]
    assert isinstance(event, Scored) and (event.scorer, event.scorer_version, event.reward) == ("longest", "3", 0.5)


async def test_without_a_sandbox_the_script_is_told_where_things_are(tmp_path: Path) -> None:
    write_task(tmp_path / "tasks" / "one", test='#!/bin/sh\n[ "$(cat "$1/answer.txt")" = 42 ] && echo 1 >"$2"\n')
    log = MemoryLog()
    finished_work(log, tmp_path, {"app/answer.txt": "42"})
    scorer = VerifierScorer(VerifierSettings(Isolation.NONE, tmp_path / "scratch"))
    await Scoring(log, scorer, load_catalog([Source("tasks", tmp_path / "tasks")])).score(follow=False)
    (event,) = [r.event for r in log.read("scores")]
    assert isinstance(event, Scored) and event.reward == 1.0

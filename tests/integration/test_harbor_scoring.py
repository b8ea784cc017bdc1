"""Judging in a fresh environment of Harbor's: what the verifier writes counts by our rules, and a broken evaluation is never a 0."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.integration.harbor_bench import (  # isort: skip - says why all of this is skipped
    environment, finished, score, task,
)  # fmt: skip
from consumers.scoring.port import EvaluationBroken
from consumers.scoring.process import ScoringSettings, make_scorer
from consumers.scoring.scoring import Scoring
from gyre_engine.events.executions import EvaluationFailed
from gyre_engine.log.memory import MemoryLog
from gyre_engine.tasks import Source, load_catalog
from tests.integration.harbor_env import BubbleEnvironment

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(120)]
WROTE = "/logs/verifier"


@pytest.fixture(autouse=True)
def no_environment_stays(tmp_path: Path) -> Any:
    yield
    assert not (tmp_path / "bubbles").exists() or list((tmp_path / "bubbles").iterdir()) == []


@pytest.mark.parametrize(
    ("script", "says"),
    [
        ("true", "neither /logs/verifier/reward.json nor reward.txt"),
        (f"echo nonsense >{WROTE}/reward.txt", "does not hold a number"),
        (f": >{WROTE}/reward.txt", "does not hold a number"),
        (f"echo 7 >{WROTE}/reward.txt", "not between 0 and 1"),
        (f"echo nan >{WROTE}/reward.txt", "not between 0 and 1"),
        (f"echo 1 >/tmp/r; ln -s /tmp/r {WROTE}/reward.txt", "plain file"),
        (f'echo \'{{"a": 1, "b": 0}}\' >{WROTE}/reward.json', "set scoring.weights"),
        ("sleep 600", "did not end within 2 s"),
    ],
)
async def test_nonsense_is_a_failed_evaluation(tmp_path: Path, script: str, says: str) -> None:
    given = task(tmp_path, toml="[verifier]\ntimeout_sec = 2.0\n", test=f"#!/bin/bash\n{script}\n")
    with pytest.raises(EvaluationBroken, match=says):
        await score(finished(tmp_path, {"app/answer.txt": "42"}), given, tmp_path)


async def test_an_environment_that_does_not_come_up_is_tried_again_and_then_final(tmp_path: Path) -> None:
    """The evaluation, not the execution: learning.md, 4."""
    given = task(tmp_path)
    log = MemoryLog()
    finished(tmp_path, {"app/answer.txt": "42"}, log)
    sources = (Source("tasks", tmp_path / "tasks"),)
    settings = ScoringSettings(sources=sources, scratch=tmp_path / "scratch", harbor=environment(tmp_path, broken=True))
    await Scoring(log, make_scorer(settings), load_catalog(sources)).score(follow=False)
    events = [record.event for record in log.read("scores")]
    assert [(type(e), e.evaluation_attempt, e.final) for e in events] == [  # type: ignore[attr-defined]
        (EvaluationFailed, 1, False), (EvaluationFailed, 2, True)
    ]  # fmt: skip
    assert "no room for another bubble" in events[0].reason and given.name == "one"  # type: ignore[attr-defined]


async def test_a_verifier_with_an_environment_of_its_own_gets_what_is_declared_and_nothing_else(tmp_path: Path) -> None:
    """Harbor's separate mode: artifacts, not the working directory. Its image brings the tests."""
    toml = 'artifacts = ["/srv/out"]\n[verifier]\nenvironment_mode = "separate"\n'
    given = task(tmp_path, toml=toml)
    (given.tests / "test.sh").write_text(
        f"#!/bin/bash\ntest -e /app/answer.txt && exit 1; test -s /opt/judge && cat /srv/out >{WROTE}/reward.txt\n"
    )
    (given.tests / "Dockerfile").write_text(
        "FROM debian\nWORKDIR /app\nRUN echo judge >/opt/judge\nCOPY test.sh /tests/test.sh\n"
    )
    judged = await score(finished(tmp_path, {"app/answer.txt": "42", "srv/out": "0.25"}), given, tmp_path)
    assert judged.reward == 0.25


async def test_several_rewards_are_weighted(tmp_path: Path) -> None:
    given = task(tmp_path, test=f'#!/bin/bash\necho \'{{"a": 1, "b": 0.5}}\' >{WROTE}/reward.json\n')
    sources = (Source("tasks", tmp_path / "tasks"),)
    settings = ScoringSettings(
        sources=sources, scratch=tmp_path / "scratch", harbor=environment(tmp_path), weights={"a": 0.5, "b": 0.5}
    )
    judged = await score(finished(tmp_path, {"app/answer.txt": "42"}), given, tmp_path, make_scorer(settings))
    assert judged.reward == 0.75


async def test_the_verifiers_user_and_variables_are_the_tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GYRE_TEST_REWARD", "0.5")
    toml = '[verifier]\nuser = "judge"\n[verifier.env]\nREWARD = "${GYRE_TEST_REWARD}"\n'
    given = task(tmp_path, toml=toml, test=f"#!/bin/bash\necho $REWARD >{WROTE}/reward.txt\n")
    BubbleEnvironment.users.clear()
    assert (await score(finished(tmp_path, {"app/a": "1"}), given, tmp_path)).reward == 0.5
    assert "judge" in BubbleEnvironment.users and replace(given, name="one") == given

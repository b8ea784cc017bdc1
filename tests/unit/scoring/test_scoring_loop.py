"""The scoring consumer on a log in memory: what was not scored is never passed over, whatever breaks."""

from __future__ import annotations

from typing import Any

import pytest

from consumers.scoring.port import Score, ScoredExecution
from consumers.scoring.scoring import Scoring, Tally
from gyre_engine.events.executions import Dispatched, Ending, EvaluationFailed, Finished, Scored
from gyre_engine.log.memory import MemoryLog
from gyre_engine.log.port import LogUnavailable


def logged(*names: str) -> MemoryLog:
    log = MemoryLog()
    for name in names:
        log.append_all(
            [
                Dispatched(
                    execution=name, group="g", index=0, attempt=0, group_size=1, group_number=0, class_number=0, query="q",
                    source="s", split="train", harness="h", weight_version=0,
                ),
                Finished(
                    execution=name, ending=Ending.COMPLETED, work_url="", work_hash="", did_work=True, served_us=1, wall_us=1
                ),
            ]
        )  # fmt: skip
    return log


class Fixed:
    """Gives one reward to all."""

    name, version = "fixed", "1"

    def __init__(self, reward: Any = 0.5) -> None:
        self.reward = reward
        self.asked: list[str] = []

    async def score(self, execution: ScoredExecution) -> Score:
        self.asked.append(execution.finished.execution)
        return Score(self.reward)


async def run(log: MemoryLog, scorer: Fixed, **how: Any) -> Tally:
    scoring = Scoring(log, scorer, None, **how)
    await scoring.score(follow=False)
    return scoring.tally


def rewards(log: MemoryLog) -> dict[str, float]:
    return {r.event.execution: r.event.reward for r in log.read("scores") if isinstance(r.event, Scored)}


class Deaf(MemoryLog):
    """Takes no score while `away`."""

    away = True

    def append(self, event: Any, **how: Any) -> Any:
        if self.away and isinstance(event, Scored | EvaluationFailed):
            raise LogUnavailable("away")
        return super().append(event, **how)


async def test_what_could_not_be_logged_is_scored_by_the_next_one() -> None:
    log = Deaf()
    for record in (r for topic in ("executions",) for r in logged("g.0.0", "g.1.0").read(topic)):
        log.append(record.event)
    with pytest.raises(LogUnavailable):
        await run(log, Fixed())
    log.away = False
    scorer = Fixed()
    assert (await run(log, scorer)).scored == 2
    assert rewards(log) == {"g.0.0": 0.5, "g.1.0": 0.5}
    assert (await run(log, Fixed())).scored == 0


@pytest.mark.parametrize("nonsense", ["much", None, float("nan"), float("inf"), True, [1]])
async def test_a_reward_that_is_no_number_is_a_failed_evaluation(nonsense: Any) -> None:
    log = logged("g.0.0")
    tally = await run(log, Fixed(nonsense), attempts=2)
    failures = [r.event for r in log.read("scores") if isinstance(r.event, EvaluationFailed)]
    assert (tally.failed, [f.final for f in failures]) == (1, [False, True])
    assert "is no finite number" in failures[0].reason


async def test_each_is_scored_once_by_each_version() -> None:
    log = logged("g.0.0", "g.1.0")
    first, second = Fixed(1.0), Fixed(0.0)
    await run(log, first)
    again = await run(log, second, every=True)
    assert (first.asked, second.asked) == (["g.0.0", "g.1.0"], []) and again.skipped == 2

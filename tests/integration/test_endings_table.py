"""The table of endings (learning.md, 4): each row provoked by real processes, and all its columns read from the log: scored, in the
group's baseline, trained, tried again. The other two executions of the group are worth 1 and 0; the third's work is worth 0.25."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from gyre_engine.events.executions import DiscardReason, Ending, Finished
from gyre_engine.sampling.port import EngineFailed
from producers.runner.harnesses import HarnessSettings
from tests.integration.endings_bench import DONE, GROUP, THIRD, End, Outcome, Said, answers, ended, group_of_three, shell
from tests.integration.harness_bench import bench
from tests.integration.runner_runs import events

COUNTED, LEFT_NOTHING, NOT_COUNTED = 5 / 12, 1 / 3, 1 / 2
"""Baselines: (1 + 0 + 0.25) / 3, (1 + 0 + 0) / 3, and (1 + 0) / 2."""
LIMIT_S = 4.0
"""What two short executions need by far, and the one that sleeps does not keep."""
WORK = answers("0.25")
STAYS, CRASHES = shell("sleep 60"), shell("kill -9 $PPID")
GONE = EngineFailed("the device fell off")


@dataclass(frozen=True, slots=True)
class Row:
    """says, ends, left_out: of each attempt, the latter as the beginning of its reason; reward: of the last one's score, None where it
    has none; failed: why the verifier broke."""

    says: Sequence[Sequence[Said]]
    ends: Sequence[End]
    reward: float | None
    baseline: float
    left_out: Sequence[str] = ()
    failed: str = ""
    harness: dict[str, Any] = field(default_factory=dict)
    runner: dict[str, Any] = field(default_factory=dict)
    proxy: dict[str, Any] = field(default_factory=dict)


def scored(ending: Ending, *says: Said, **given: Any) -> Row:
    """Ends by itself or by a limit of its harness: scored as it stands, in the baseline, trained, not tried again."""
    return Row([says], [ending], 0.25, COUNTED, **given)


def unjudged(answer: str, reason: str) -> Row:
    """The verifier breaks on this answer: retried within the budget, then nowhere; the execution is not run again."""
    return Row([(answers(answer), DONE)], [Ending.COMPLETED], None, NOT_COUNTED, ["evaluation-failed: "], failed=reason)


CRASHED, LOST, OVERALL = DiscardReason.CRASHED_WITHOUT_WORK, DiscardReason.LOST, DiscardReason.OVERALL_TIMEOUT
ROWS = {
    "completed": scored(Ending.COMPLETED, WORK, DONE),
    "harness-time-out": scored(Ending.HARNESS_TIMEOUT, WORK, STAYS, runner={"harness_timeout_s": LIMIT_S}),
    "turn-budget": scored(Ending.TURN_BUDGET, WORK, shell("true"), harness={"max_turns": 4}),
    "token-budget": scored(Ending.TOKEN_BUDGET, WORK, "word " * 2000 + shell("true"), harness={"token_budget": 1500}),
    "context-limit": scored(Ending.CONTEXT_LIMIT, WORK, shell("seq 1 3000"), proxy={"context": 4096}),
    "overall-time-out": Row(
        [(WORK, STAYS)], [(OVERALL, True)], None, NOT_COUNTED, ["discarded: overall-timeout"], runner={"overall_timeout_s": LIMIT_S}
    ),
    "crashed-after-work": scored(Ending.HARNESS_CRASHED, WORK, CRASHES),
    "crashed-with-nothing-done": Row(
        [(CRASHES,), (WORK, DONE)], [(CRASHED, False), Ending.COMPLETED], 0.25, COUNTED, ["discarded: crashed-without-work"]
    ),
    "crashed-with-nothing-done-twice": Row(
        [(CRASHES,), (CRASHES,)], [(CRASHED, False), (CRASHED, True)], None, NOT_COUNTED, ["discarded: crashed-without-work"] * 2
    ),
    "verifier-crashed": unjudged("crash", "ended by signal 9"),
    "verifier-hung": unjudged("hang", "did not end within 1 s"),
    "verifier-wrote-nonsense": unjudged("nonsense", "does not hold a number"),
    "time-out-and-a-verifier-that-crashed": Row(
        [(answers("crash"), STAYS)], [Ending.HARNESS_TIMEOUT], None, NOT_COUNTED, ["evaluation-failed: "],
        failed="ended by signal 9", runner={"harness_timeout_s": LIMIT_S},
    ),
    "left-nothing": Row([("I will not.",)], [Ending.COMPLETED], 0.0, LEFT_NOTHING),
    "endpoint-lost": Row(
        [(GONE,), (WORK, DONE)], [(LOST, False), Ending.COMPLETED], 0.25, COUNTED, ["discarded: lost"],
        harness={"patience_s": 0.3}, proxy={"wait_limit_s": 0.6},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ROWS)
async def test_a_row_of_the_table(name: str, tmp_path: Path) -> None:
    """C53: among them a time-out that is scored and trained, and one whose evaluation fails too and counts once. C35: (a)."""
    row = ROWS[name]
    group = group_of_three(tmp_path, row.says)
    group.task("one")
    async with bench(tmp_path, **row.proxy) as on:
        on.cell("a", 0, group.engine())
        harness = HarnessSettings(tools=("write", "bash"), **row.harness)
        await group.run(on, ended(2 + len(row.ends)), group_size=3, harness=harness, **row.runner)
    await group.judge(on.log)
    found = Outcome(on.log)
    assert found.ends == list(row.ends)
    assert found.attempts == [f"{THIRD}.{attempt}" for attempt in range(len(row.ends))]
    assert found.score == (None if row.reward is None else (row.reward, False))
    assert [(e.execution, e.final) for e in found.failed] == [(f"{THIRD}.0", False), (f"{THIRD}.0", True)][: 2 * bool(row.failed)]
    assert all(row.failed in event.reason for event in found.failed)
    check_decision(found, row)


def check_decision(found: Outcome, row: Row) -> None:
    """Who is in the baseline and trains on all that it sampled; who is left out, why, and with how many tokens."""
    group = found.group
    third = [] if row.reward is None else [(f"{THIRD}.{len(row.ends) - 1}", row.reward)]
    assert [(e.execution, e.reward) for e in group.executions] == [(f"{GROUP}.0.0", 1.0), (f"{GROUP}.1.0", 0.0), *third]
    assert group.trains and group.mean == pytest.approx(row.baseline)
    assert all(e.trained_tokens == found.sampled(e.execution) > 0 for e in group.executions)
    assert [out.what for out in group.left_out] == [f"{THIRD}.{attempt}" for attempt in range(len(row.left_out))]
    assert all(out.reason.startswith(why) for out, why in zip(group.left_out, row.left_out, strict=True))
    assert all(out.tokens == found.sampled(out.what) for out in group.left_out)
    assert len(group.executions) + len(group.left_out) == 2 + len(found.attempts)


async def test_an_environment_that_never_comes_up_is_tried_within_the_budget_and_counts_nowhere(tmp_path: Path) -> None:
    """What the image copies goes away once the other two are up: three attempts, then a placeholder of 0."""

    def goes_away(execution: str) -> None:
        if execution == f"{GROUP}.1.0":
            (task / "environment" / "seed.txt").unlink(missing_ok=True)

    group = group_of_three(tmp_path, [], heard=goes_away)
    task = group.task("one")
    async with bench(tmp_path) as on:
        on.cell("a", 0, group.engine())
        await group.run(on, ended(5), group_size=3, max_concurrent=1, attempts=3)
    await group.judge(on.log)
    found = Outcome(on.log)
    ends = [(DiscardReason.ENVIRONMENT, final) for final in (False, False, True)]
    assert found.ends == ends and len(found.attempts) == 3
    assert found.score == (0.0, True) and found.failed == []
    check_decision(found, Row([], ends, None, NOT_COUNTED, ["discarded: environment"] * 3))


async def test_an_execution_that_is_cancelled_counts_nowhere_and_is_not_tried_again(tmp_path: Path) -> None:
    group = group_of_three(tmp_path, [(WORK, STAYS)])
    group.task("one")
    async with bench(tmp_path) as on:
        on.cell("a", 0, group.engine())
        await group.run(on, lambda log: len(events(log, Finished)) == 2 and group.turns[f"{THIRD}.0"] == 2, group_size=3)
    await group.judge(on.log)
    found = Outcome(on.log)
    assert found.ends == [(DiscardReason.CANCELLED, True)] and found.attempts == [f"{THIRD}.0"]
    assert found.score is None and found.failed == []
    check_decision(found, Row([], found.ends, None, NOT_COUNTED, ["discarded: cancelled"]))


@pytest.mark.slow
async def test_two_clocks_a_queue_longer_than_the_limit_ends_nobody(tmp_path: Path) -> None:
    """No cell samples until each agent was held up for longer than its whole limit; the one that sleeps still ends by it."""
    group = group_of_three(tmp_path, [(WORK, STAYS)])
    group.task("one")
    names = [f"{GROUP}.0.0", f"{GROUP}.1.0", f"{THIRD}.0"]

    async with bench(tmp_path) as on:

        def enough(log: Any) -> bool:
            if not on.engines and all(on.service.held_us(name) > 1.2e6 * LIMIT_S for name in names):
                on.cell("a", 0, group.engine())
            return ended(3)(log)

        await group.run(on, enough, group_size=3, harness_timeout_s=LIMIT_S)
    await group.judge(on.log)
    found = Outcome(on.log)
    ends = {end.execution: end for end in events(found.log, Finished)}
    assert [ends[name].ending for name in names] == [Ending.COMPLETED, Ending.COMPLETED, Ending.HARNESS_TIMEOUT]
    assert all(end.wall_us > 1.2e6 * LIMIT_S and end.wall_us - end.served_us > 1.2e6 * LIMIT_S for end in ends.values())
    assert found.score == (0.25, False)
    check_decision(found, scored(Ending.HARNESS_TIMEOUT))

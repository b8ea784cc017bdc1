"""The table of endings and the budget of attempts, by hand from learning.md, 4."""

from __future__ import annotations

import pytest

from gyre_engine.events.executions import DiscardReason, Ending
from producers.runner.endings import Facts, Stopped, judge, tried_again
from producers.runner.harnesses.port import Trouble

COMPLETED, CRASHED, LOST = Ending.COMPLETED, Trouble.CRASHED, Trouble.ENDPOINT_LOST


@pytest.mark.parametrize(
    ("stopped", "came_up", "said", "did_work", "verdict"),
    [
        (Stopped.ITSELF, True, COMPLETED, True, Ending.COMPLETED),
        (Stopped.ITSELF, True, COMPLETED, False, Ending.COMPLETED),
        (Stopped.ITSELF, True, Ending.TURN_BUDGET, True, Ending.TURN_BUDGET),
        (Stopped.ITSELF, True, Ending.CONTEXT_LIMIT, False, Ending.CONTEXT_LIMIT),
        (Stopped.SERVED_TIME, True, CRASHED, False, Ending.HARNESS_TIMEOUT),
        (Stopped.OVERALL_TIME, True, CRASHED, True, DiscardReason.OVERALL_TIMEOUT),
        (Stopped.ITSELF, True, CRASHED, True, Ending.HARNESS_CRASHED),
        (Stopped.ITSELF, True, CRASHED, False, DiscardReason.CRASHED_WITHOUT_WORK),
        (Stopped.ITSELF, True, LOST, True, DiscardReason.LOST),
        (Stopped.ITSELF, False, CRASHED, False, DiscardReason.ENVIRONMENT),
        (Stopped.CANCELLED, True, COMPLETED, True, DiscardReason.CANCELLED),
    ],
)
def test_each_row(
    stopped: Stopped, came_up: bool, said: Ending | Trouble, did_work: bool, verdict: Ending | DiscardReason
) -> None:
    assert judge(Facts(stopped, came_up, said, did_work)) is verdict


@pytest.mark.parametrize(
    ("reason", "attempts", "tries"),
    [
        (DiscardReason.ENVIRONMENT, 3, 3),
        (DiscardReason.ENVIRONMENT, 1, 1),
        (DiscardReason.LOST, 3, 2),
        (DiscardReason.CRASHED_WITHOUT_WORK, 3, 2),
        (DiscardReason.CRASHED_WITHOUT_WORK, 1, 1),
        (DiscardReason.OVERALL_TIMEOUT, 3, 1),
        (DiscardReason.CANCELLED, 3, 1),
    ],
)
def test_how_often_an_execution_is_tried(reason: DiscardReason, attempts: int, tries: int) -> None:
    made = 1
    while tried_again(reason, made - 1, attempts):
        made += 1
    assert made == tries

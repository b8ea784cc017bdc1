"""The runner keeps the scores that a report still needs, and no others."""

from __future__ import annotations

from gyre_engine.events.executions import EvaluationFailed, Scored
from gyre_engine.scheduling.classes import ClassPlan
from gyre_engine.tasks import Draw
from producers.runner.board import Board
from producers.runner.dispatch import GroupShape, plan_evaluation, training_groups
from producers.runner.scores import PendingScores


def scored(execution: str, reward: float, *, scorer: str = "verifier", placeholder: bool = False) -> Scored:
    return Scored(
        execution=execution, scorer=scorer, scorer_version="1", evaluation_attempt=0, reward=reward, placeholder=placeholder
    )


def failed(execution: str, *, final: bool) -> EvaluationFailed:
    return EvaluationFailed(
        execution=execution, scorer="verifier", scorer_version="1", evaluation_attempt=0, reason="", final=final
    )


def pending() -> PendingScores:
    """A run with 100 training groups of 2 and the evaluations v000-val and v001-val of two tasks."""
    board, plan = Board(), ClassPlan(batch=100, mu=1, phi=0, steps=9)
    for event in training_groups(plan, GroupShape(2, "mini"), 0, 0, 0, lambda at: Draw(at, "tasks", 0, f"t{at}")):
        board.observe(event)
    for version in (0, 1):
        for event in plan_evaluation("val", [("tasks", "a"), ("tasks", "b")], 1, version).groups("mini"):
            board.observe(event)
    return PendingScores("verifier", "1", board.evaluation_of)


def test_scores_of_training_and_of_unknown_executions_are_not_kept() -> None:
    scores = pending()
    for number in range(100):
        scores.note(scored(f"g{number:06d}.1.0", 1.0))
    scores.note(scored("v009-val-0000.0.0", 1.0))
    scores.note(scored("not of this form", 1.0))
    assert len(scores) == 0


def test_the_first_final_score_of_the_pinned_scorer_counts() -> None:
    scores = pending()
    scores.note(failed("v000-val-0000.0.0", final=False))
    scores.note(scored("v000-val-0000.0.0", 9.0, scorer="another"))
    scores.note(scored("v000-val-0000.0.0", 0.5))
    scores.note(scored("v000-val-0000.0.0", 1.0))
    scores.note(failed("v000-val-0001.0.0", final=True))
    assert scores.of("v000-val") == {"v000-val-0000.0.0": 0.5, "v000-val-0001.0.0": None}
    assert scores.of("v001-val") == {}


def test_a_placeholder_is_a_score_that_counts_for_nothing() -> None:
    scores = pending()
    scores.note(scored("v000-val-0000.0.0", 0.0, placeholder=True))
    assert scores.of("v000-val") == {"v000-val-0000.0.0": None}


def test_a_reported_evaluation_is_forgotten_whichever_topic_is_read_first() -> None:
    scores = pending()
    scores.note(scored("v000-val-0000.0.0", 1.0))
    scores.note(scored("v001-val-0000.0.0", 1.0))
    scores.close("v000-val")
    scores.note(scored("v000-val-0001.0.0", 1.0))
    assert len(scores) == 1
    assert scores.of("v001-val") == {"v001-val-0000.0.0": 1.0}

"""Admission: which executions count, when a group is decided, and that a decision never changes."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gyre_engine.admission import Admission, AdmissionSettings, Admitted
from gyre_engine.events import Event, Recorded
from gyre_engine.events.calls import Quarantined, Role, TreeClosed, TreeNode
from gyre_engine.events.executions import Discarded, DiscardReason, Dispatched, Ending, EvaluationFailed, Finished, Scored
from gyre_engine.events.training import GroupAdmitted

SETTINGS = AdmissionSettings("verifier", "1")


def dispatched(index: int, attempt: int = 0, size: int = 2, **given: object) -> Dispatched:
    fields: dict[str, object] = {
        "execution": f"g.{index}.{attempt}",
        "group": "g",
        "index": index,
        "attempt": attempt,
        "group_size": size,
        "group_number": 5,
        "class_number": 1,
        "query": "q",
        "source": "s",
        "split": "train",
        "harness": "h",
        "weight_version": 3,
    }
    return Dispatched(**{**fields, **given})  # type: ignore[arg-type]


def finished(index: int, attempt: int = 0) -> Finished:
    return Finished(
        execution=f"g.{index}.{attempt}",
        ending=Ending.COMPLETED,
        work_url="",
        work_hash="",
        did_work=True,
        served_us=1,
        wall_us=1,
    )


def discarded(index: int, attempt: int = 0, final: bool = True) -> Discarded:
    return Discarded(execution=f"g.{index}.{attempt}", reason=DiscardReason.OVERALL_TIMEOUT, final=final, wall_us=1)


def closed(index: int, attempt: int = 0, leaves: int = 1, tokens: int = 6) -> TreeClosed:
    """A prompt of 4 tokens with `leaves` answers of `tokens` sampled tokens each."""
    nodes = [TreeNode(f"n{leaf}", None, 0, 4, tokens, True, Role.MAIN, 3 + leaf) for leaf in range(leaves)]
    return TreeClosed(
        execution=f"g.{index}.{attempt}",
        nodes=tuple(nodes),
        sampled_tokens=leaves * tokens,
        tree_tokens=leaves * tokens,
        delivered=1.0,
    )


def scored(index: int, reward: float, attempt: int = 0, scorer: str = "verifier", **given: object) -> Scored:
    return Scored(
        execution=f"g.{index}.{attempt}",
        scorer=scorer,
        scorer_version="1",
        evaluation_attempt=0,
        reward=reward,
        **given,  # type: ignore[arg-type]
    )


def failed(index: int, final: bool = True) -> EvaluationFailed:
    return EvaluationFailed(
        execution=f"g.{index}.0", scorer="verifier", scorer_version="1", evaluation_attempt=1, reason="crashed", final=final
    )


def whole(index: int, reward: float, size: int = 2, leaves: int = 1) -> list[Event]:
    return [dispatched(index, size=size), finished(index), closed(index, leaves=leaves), scored(index, reward)]


def recorded(events: list[Event]) -> list[Recorded]:
    return [Recorded(f"id{n:03}", "run", 100 + n, None, event) for n, event in enumerate(events)]


def feed(records: list[Recorded], config: AdmissionSettings = SETTINGS) -> list[Admitted]:
    admission = Admission(config)
    return [found for record in records if (found := admission.observe(record)) is not None]


def admit(*events: Event, config: AdmissionSettings = SETTINGS) -> GroupAdmitted:
    (only,) = feed(recorded(list(events)), config)
    return only.event


def test_c20_the_baseline_is_over_executions_and_every_trajectory_inherits_its_execution_s_advantage() -> None:
    """C20: A: reward 1, three trajectories; B: reward 0, one. Mean 0.5, population deviation 0.5, so +1 and -1 after scaling."""
    group = admit(*whole(0, 1.0, leaves=3), *whole(1, 0.0, leaves=1))
    a, b = group.executions
    assert (group.mean, group.deviation, group.trains) == (0.5, 0.5, True)
    assert (a.reward - group.mean, b.reward - group.mean) == (0.5, -0.5)
    assert (a.advantage, b.advantage) == (1.0, -1.0)
    assert (len(a.trajectories), len(b.trajectories)) == (3, 1)
    assert (a.trained_tokens, b.trained_tokens) == (18, 6)


@settings(deadline=None)
@given(st.permutations(recorded([*whole(0, 1.0, 3), *whole(1, 0.0, 3), *whole(2, 0.5, 3)])))
def test_in_any_order_of_arrival_it_is_one_decision_with_one_id(records: list[Recorded]) -> None:
    (expected,) = feed(sorted(records, key=lambda r: r.id))
    assert feed(records) == [expected]
    assert (expected.cause, expected.at) == ("id011", 111)


def test_a_group_waits_for_the_end_the_closed_tree_and_the_score_of_each_place() -> None:
    events = [*whole(0, 1.0), *whole(1, 0.0)]
    for missing in range(len(events)):
        assert feed(recorded(events[:missing] + events[missing + 1 :])) == []


def test_a_decision_never_changes() -> None:
    again = recorded([*whole(0, 1.0), *whole(1, 0.0), scored(1, 1.0), *whole(1, 1.0), discarded(0)])
    assert len(feed(again + again)) == 1


def test_a_group_that_the_log_has_decided_is_not_decided_again() -> None:
    admission = Admission(SETTINGS)
    admission.decided("g")
    assert [admission.observe(r) for r in recorded([*whole(0, 1.0), *whole(1, 0.0)])] == [None] * 8


def test_the_first_score_of_the_pinned_scorer_counts_and_no_other_scorer_s() -> None:
    other = [scored(0, 9.0, scorer="mine"), scored(1, 9.0, scorer="mine")]
    group = admit(*other, *whole(0, 1.0), scored(0, 0.0), *whole(1, 0.0))
    assert [e.reward for e in group.executions] == [1.0, 0.0]


def test_one_failed_evaluation_leaves_the_baseline_to_the_others() -> None:
    lost = [dispatched(2, size=3), finished(2), closed(2), failed(2, final=False), failed(2)]
    group = admit(*whole(0, 1.0, 3), *whole(1, 0.0, 3), *lost)
    assert (group.mean, group.trains, len(group.executions)) == (0.5, True, 2)
    assert [(o.what, o.reason, o.tokens) for o in group.left_out] == [("g.2.0", "evaluation-failed: crashed", 6)]


def test_a_failed_evaluation_that_is_tried_again_decides_nothing() -> None:
    tried = [dispatched(1), finished(1), closed(1), failed(1, final=False)]
    assert feed(recorded([*whole(0, 1.0), *tried])) == []
    assert admit(*whole(0, 1.0), *tried, scored(1, 0.0)).trains


def test_fewer_than_the_group_minimum_do_not_train() -> None:
    group = admit(*whole(0, 1.0), dispatched(1), discarded(1))
    assert (group.trains, group.reason, len(group.executions)) == (False, "too-few", 1)
    assert [o.reason for o in group.left_out] == ["discarded: overall-timeout"]


def test_a_group_in_which_nothing_counts_is_decided_too() -> None:
    group = admit(dispatched(0), discarded(0), dispatched(1), discarded(1))
    assert (group.trains, group.reason, group.executions, group.mean) == (False, "too-few", (), 0.0)


def test_equal_rewards_do_not_train() -> None:
    group = admit(*whole(0, 1.0), *whole(1, 1.0))
    assert (group.trains, group.reason, group.deviation) == (False, "zero-variance", 0.0)
    assert [e.advantage for e in group.executions] == [0.0, 0.0]


def test_a_near_tie_is_not_blown_up() -> None:
    """Deviation 0.0005 is below the floor 0.01 x range 1, so the divisor is 0.01: advantages are +-0.05."""
    group = admit(*whole(0, 0.501), *whole(1, 0.5))
    assert [e.advantage for e in group.executions] == pytest.approx([0.05, -0.05])


def test_another_attempt_takes_the_place_of_one_that_is_not_final() -> None:
    first = [*whole(0, 1.0), dispatched(1), discarded(1, final=False)]
    assert feed(recorded(first)) == []
    second = [dispatched(1, attempt=1), finished(1, 1), closed(1, 1), scored(1, 0.0, 1)]
    group = admit(*first, *second)
    assert [e.execution for e in group.executions] == ["g.0.0", "g.1.1"]
    assert [o.what for o in group.left_out] == ["g.1.0"]


def test_a_placeholder_is_outside_the_baseline() -> None:
    up_never = [dispatched(2, size=3), finished(2), scored(2, 0.0, placeholder=True)]
    group = admit(*whole(0, 1.0, 3), *whole(1, 0.0, 3), *up_never)
    assert group.mean == 0.5
    assert [o.reason for o in group.left_out] == ["placeholder: the environment never came up"]


def test_an_agent_that_left_nothing_counts_with_zero() -> None:
    nothing = [dispatched(1), finished(1), closed(1, leaves=0), scored(1, 0.0)]
    group = admit(*whole(0, 1.0), *nothing)
    assert [(e.reward, e.trained_tokens) for e in group.executions] == [(1.0, 6), (0.0, 0)]
    assert group.trains


def test_a_group_without_a_token_to_train_says_so() -> None:
    none = [[dispatched(i), finished(i), closed(i, leaves=0), scored(i, float(i))] for i in range(2)]
    assert admit(*none[0], *none[1]).reason == "nothing-to-train"


def test_a_quarantined_execution_leaves_without_waiting_for_its_end() -> None:
    group = admit(*whole(0, 1.0, 3), *whole(1, 0.0, 3), dispatched(2, size=3), Quarantined(execution="g.2.0", reason="bad"))
    assert [(o.what, o.reason) for o in group.left_out] == [("g.2.0", "quarantined: bad")]
    assert group.trains


def test_a_quarantined_attempt_that_is_tried_again_leaves_its_place_to_the_next() -> None:
    """The place is the retry's, whether its dispatch or the end of the first attempt is read before the quarantine."""
    bad, again = Quarantined(execution="g.2.0", reason="bad"), [dispatched(2, 1, size=3), finished(2, 1), closed(2, 1)]
    for known in ([discarded(2, final=False), bad], [again[0], bad, discarded(2, final=False)]):
        rest = [event for event in again if event not in known]
        events = [*whole(0, 1.0, 3), *whole(1, 0.0, 3), dispatched(2, size=3), *known, *rest, scored(2, 0.5, 1)]
        group = admit(*events)
        assert [e.execution for e in group.executions] == ["g.0.0", "g.1.0", "g.2.1"]
        assert [(o.what, o.reason) for o in group.left_out] == [("g.2.0", "quarantined: bad")]


def test_evaluation_executions_are_never_admitted() -> None:
    evaluated = [dispatched(i, evaluation="e1") for i in range(2)]
    assert feed(recorded([*evaluated, *whole(0, 1.0), *whole(1, 0.0)])) == []


def test_versions_and_place_of_the_group_are_carried() -> None:
    group = admit(*whole(0, 1.0), *whole(1, 0.0))
    assert (group.group_number, group.class_number, group.dispatched_version) == (5, 1, 3)
    assert [e.min_version for e in group.executions] == [3, 3]

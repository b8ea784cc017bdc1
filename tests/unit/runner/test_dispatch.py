"""Dispatch: depth, classes, places; and the fold that tells what is due."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gyre_engine.events.executions import Discarded, DiscardReason, Dispatched, Ending, Finished, Started
from gyre_engine.scheduling.classes import ClassPlan
from gyre_engine.scheduling.evaluations import EvaluationPlan
from gyre_engine.tasks import Draw
from producers.runner.board import Board, State
from producers.runner.dispatch import GroupShape, plan_evaluation, training_groups
from producers.runner.endings import RESTART

SHAPE = GroupShape(3, "mini")


def drawn(position: int) -> Draw:
    return Draw(position, "tasks", 0, f"t{position % 5}")


def dispatch(board: Board, plan: ClassPlan, published: int) -> list[Dispatched]:
    """What is due, put on the board."""
    due = list(training_groups(plan, SHAPE, board.next_group, board.next_draw, published, drawn))
    for event in due:
        board.observe(event)
    return due


def finish(execution: str) -> Finished:
    return Finished(
        execution=execution, ending=Ending.COMPLETED, work_url="", work_hash="", did_work=True, served_us=0, wall_us=0
    )


def test_the_first_boundary_dispatches_phi_plus_mu_batches_and_each_later_one_mu() -> None:
    """B = 4, mu = 2, phi = 1: 12 groups, then 8 more at versions 2 and 4, nothing at 1 and 3."""
    plan, board = ClassPlan(batch=4, mu=2, phi=1, steps=100), Board()
    counts = [len(dispatch(board, plan, version)) // 3 for version in (0, 1, 2, 3, 4)]
    assert counts == [12, 0, 8, 0, 8]
    classes = [board.groups[f"g{n:06d}"].class_number for n in (0, 11, 12, 19, 20)]
    assert classes == [0, 0, 1, 1, 2]


@given(
    batch=st.integers(1, 4),
    mu=st.integers(1, 3),
    phi=st.integers(0, 3),
    bursts=st.integers(1, 5),
    restarts=st.sets(st.integers(0, 20)),
)
def test_no_group_is_further_ahead_than_the_depth_and_none_is_left_out(
    batch: int, mu: int, phi: int, bursts: int, restarts: set[int]
) -> None:
    """Groups train in order, B a step: group n trains at version n // B, so its staleness is that less its dispatch version."""
    steps = mu * bursts
    plan, board, log = ClassPlan(batch=batch, mu=mu, phi=phi, steps=steps), Board(), list[Dispatched]()
    for version in range(0, steps + 1, mu):
        if version in restarts:  # a new runner knows what the log says and nothing else
            board = Board()
            for event in log:
                board.observe(event)
        log += dispatch(board, plan, version)
        ahead = len({e.group for e in log}) - version * batch
        assert ahead <= (phi + mu) * batch
    assert sorted({(e.group_number, e.index) for e in log}) == [(n, i) for n in range(steps * batch) for i in range(3)]
    assert len(log) == len({e.execution for e in log}) == steps * batch * 3
    for event in log:
        assert 0 <= event.group_number // batch - event.weight_version <= phi + mu - 1
    assert [e.draw for e in log] == [n for n in range(steps * batch) for _ in range(3)]


def test_a_filtered_draw_moves_the_position_past_what_was_left_out() -> None:
    plan, board = ClassPlan(batch=1, mu=1, phi=1, steps=9), Board()
    due = training_groups(plan, SHAPE, 0, 0, 0, lambda position: drawn(position + position % 2))
    assert [e.draw for e in due][::3] == [0, 2]
    assert board.next_draw == 0


def test_a_group_that_was_dispatched_in_half_is_completed() -> None:
    board, plan = Board(), ClassPlan(batch=1, mu=1, phi=0, steps=1)
    first = next(iter(training_groups(plan, SHAPE, 0, 0, 0, drawn)))
    board.observe(first)
    assert [m.execution for m in board.missing()] == ["g000000.1.0", "g000000.2.0"]


def test_attempts_follow_discards_and_the_first_terminal_event_wins() -> None:
    board, plan = Board(), ClassPlan(batch=1, mu=1, phi=0, steps=1)
    dispatch(board, plan, 0)
    zero = "g000000.0.0"
    board.observe(Started(execution=zero))
    board.observe(Discarded(execution=zero, reason=DiscardReason.LOST, final=False, wall_us=0))
    board.observe(finish(zero))  # it wakes up later: too late
    assert board.places["g000000", 0].state is State.RETRY
    (again,) = board.retries()
    assert (again.execution, again.attempt) == ("g000000.0.1", 1)
    board.observe(again)
    board.observe(finish(again.execution))
    assert board.places["g000000", 0].state is State.SETTLED and board.places["g000000", 0].finished
    assert board.open(evaluation=False) == 2


def test_only_the_runners_own_restarts_are_not_counted_against_the_budget() -> None:
    board, plan = Board(), ClassPlan(batch=1, mu=1, phi=0, steps=1)
    dispatch(board, plan, 0)
    board.observe(Discarded(execution="g000000.0.0", reason=DiscardReason.LOST, final=False, wall_us=0, detail=RESTART))
    board.observe(Discarded(execution="g000000.1.0", reason=DiscardReason.LOST, final=False, wall_us=0, detail="gone"))
    assert board.places["g000000", 0].before[DiscardReason.LOST] == 0
    assert board.places["g000000", 1].before[DiscardReason.LOST] == 1


def test_an_execution_that_outlasts_the_run_again_and_again_keeps_its_place() -> None:
    """Stopped and resumed seven times while it ran: each time a new attempt at the same place, until one ends."""
    board, plan = Board(), ClassPlan(batch=1, mu=1, phi=0, steps=1)
    dispatch(board, plan, 0)
    first = board.groups["g000000"]
    for life in range(7):
        name = f"g000000.0.{life}"
        board.observe(Started(execution=name))
        assert [orphan.execution for orphan in board.of_state(State.STARTED)] == [name]
        board.observe(Discarded(execution=name, reason=DiscardReason.LOST, final=False, wall_us=0, detail=RESTART))
        (again,) = board.retries()
        assert (again.execution, again.group_number, again.class_number) == (f"g000000.0.{life + 1}", 0, first.class_number)
        assert (again.query, again.draw) == (first.query, first.draw)
        board.observe(again)
    assert board.places["g000000", 0].before[DiscardReason.LOST] == 0
    board.observe(finish("g000000.0.7"))
    assert board.places["g000000", 0].finished


@given(st.lists(st.sampled_from(["dispatch", "start", "finish", "lose"]), max_size=40), st.randoms(use_true_random=False))
def test_places_always_sum_to_what_was_dispatched(moves: list[str], random: object) -> None:
    """Whatever is delivered twice or out of place: settled + open = places."""
    plan, board = ClassPlan(batch=2, mu=1, phi=0, steps=4), Board()
    version = 0
    for move in moves:
        latest = [place.latest.execution for place in board.places.values()]
        if move == "dispatch":
            dispatch(board, plan, version := min(version + 1, 4))
        elif latest and move == "start":
            board.observe(Started(execution=random.choice(latest)))  # type: ignore[attr-defined]
        elif latest and move == "finish":
            board.observe(finish(random.choice(latest)))  # type: ignore[attr-defined]
        elif latest:
            board.observe(
                Discarded(execution=random.choice(latest), reason=DiscardReason.LOST, final=False, wall_us=0)  # type: ignore[attr-defined]
            )
        by_state = [len(board.of_state(state)) for state in State]
        assert sum(by_state) == len(board.places)
        assert board.open(evaluation=False) == len(board.places) - len(board.of_state(State.SETTLED))


def test_evaluations_run_before_training_and_classes_in_order() -> None:
    board, plan = Board(), ClassPlan(batch=1, mu=1, phi=0, steps=2)
    dispatch(board, plan, 1)
    for event in plan_evaluation("val", [("s", "a")], 1, 1).groups("mini"):
        board.observe(event)
    order = [e.group for e in board.of_state(State.DISPATCHED)]
    assert order == ["v001-val-0000", *["g000000"] * 3, *["g000001"] * 3]


@pytest.mark.parametrize(
    ("version", "earlier", "due"),
    [
        (0, -1, ("test",)),
        (1, 0, ()),
        (5, 4, ("val",)),
        (6, 4, ("val",)),
        (6, 5, ()),
        (10, 8, ("val", "test")),
    ],
)
def test_evaluations_are_due_at_their_steps(version: int, earlier: int, due: tuple[str, ...]) -> None:
    plan = EvaluationPlan(every=5, split="val", before="test", after="test")
    assert plan.due(version, earlier, steps=10) == due

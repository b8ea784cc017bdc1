"""What the core keeps of what it reads: the calls that it may still train, whichever topic it reads first."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from dataclasses import replace
from itertools import permutations

import pytest

from gyre_engine.events import Event
from gyre_engine.events.executions import Discarded, DiscardReason, Dispatched
from gyre_engine.events.training import GroupAdmitted, LeftOut
from gyre_engine.training.ledger.backlog import Backlog
from tests.unit.replay.test_derived_again import call, execution, group_of, logged

TOPICS = ("executions", "model-calls", "trajectories")
EXECUTIONS = ("g.0.0", "g.1.0")


@pytest.mark.parametrize("order", list(permutations(TOPICS)), ids="-".join)
@pytest.mark.parametrize(
    ("rewards", "calls", "kept"),
    [((1.0, 0.0), (2, 3), [2, 3]), ((1.0, 1.0), (2, 3), [0, 0]), ((1.0, 0.0), (2, 0), [2, 0])],
    ids=["both train", "no variance", "one has nothing"],
)
def test_calls_of_a_group_are_kept_where_they_train(
    order: tuple[str, ...], rewards: tuple[float, float], calls: tuple[int, int], kept: list[int]
) -> None:
    log, backlog = logged(rewards, calls), Backlog()
    for topic in order:
        for record in log.read(topic):
            backlog.see(record.event)
    assert [len(backlog.calls.of(name)) for name in EXECUTIONS] == kept
    assert [g.group for g in backlog.admitted] == ["g"], "it counts as a group of its step all the same"
    backlog.consume(["g"])
    assert not any(backlog.calls.of(name) for name in EXECUTIONS)
    assert group_of(log).trains is (rewards[0] != rewards[1])


def events_of(index: int) -> Iterator[Event]:
    """An execution that trains, and an attempt before it that was discarded."""
    dispatched, *others = execution(index, float(index % 2), 2)
    assert isinstance(dispatched, Dispatched)
    yield replace(dispatched, execution=f"g.{index}.9")
    yield call(f"g.{index}.9", 0)
    yield Discarded(execution=f"g.{index}.9", reason=DiscardReason.LOST, final=False, wall_us=1)
    yield from (dispatched, *others)


def admitted(size: int) -> GroupAdmitted:
    group = group_of(logged((1.0, 0.0), (2, 2)))
    chosen = tuple(replace(group.executions[0], execution=f"g.{index}.0", index=index) for index in range(size))
    return replace(group, executions=chosen, left_out=tuple(LeftOut(f"g.{index}.9", "lost", 0) for index in range(size)))


@pytest.mark.parametrize("order", list(permutations(("read", "admitted", "consumed"))), ids="-".join)
def test_what_stays_of_a_consumed_group_does_not_grow_with_its_executions(order: tuple[str, ...]) -> None:
    """In whatever order its executions and calls, its admission and its step are read; nor when it is all read again."""
    sizes = []
    for size in (1, 8):
        backlog = Backlog()
        for what in (*order, *order):
            match what:
                case "read":
                    for event in (event for index in range(size) for event in events_of(index)):
                        backlog.see(event)
                case "admitted":
                    backlog.see(admitted(size))
                case _:
                    backlog.consume(["g"])
        sizes.append(len(pickle.dumps(backlog)))
    assert sizes[0] == sizes[1]


@pytest.mark.parametrize("early", [0, 2, 4], ids="{} before".format)
def test_of_an_evaluation_no_call_is_kept_and_its_groups_name_alone_stays(early: int) -> None:
    """However much of its calls is read before it is known to be one."""
    sizes = []
    for size in (1, 8):
        backlog, stories = Backlog(), [execution(index, 1.0, 2) for index in range(size)]
        of_calls = [event for _, *others in stories for event in others[:4]]
        dispatched = [replace(event, evaluation="v000-val") for event, *_ in stories if isinstance(event, Dispatched)]
        for event in (*of_calls[: early * size], *dispatched, *of_calls[early * size :]):
            backlog.see(event)
        assert not any(backlog.calls.of(f"g.{index}.0") for index in range(size))
        sizes.append(len(pickle.dumps(backlog)))
    assert sizes[0] == sizes[1]


def test_an_attempt_that_was_discarded_is_forgotten_while_its_group_waits() -> None:
    backlog = Backlog()
    for event in (*events_of(0), call("g.0.9", 1)):
        backlog.see(event)
    assert [len(backlog.calls.of(name)) for name in ("g.0.9", "g.0.0")] == [0, 2]

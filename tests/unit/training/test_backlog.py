"""What the core keeps of what it reads: the calls that it may still train, whichever topic it reads first."""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import permutations
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gyre_engine.admission import Admission
from gyre_engine.batching.step_inputs import missing_calls, trained
from gyre_engine.events import Event, Recorded
from gyre_engine.events.calls import TreeClosed
from gyre_engine.events.executions import Discarded, DiscardReason, Dispatched, Finished
from gyre_engine.events.training import GroupAdmitted, LeftOut
from gyre_engine.training.backlog import Backlog
from gyre_engine.trees import facts
from gyre_engine.trees.forest import Forest
from gyre_engine.trees.owned import OwnedCalls
from tests.unit.replay.test_derived_again import SETTINGS, call, execution, group_of, logged

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


@pytest.mark.parametrize(("first", "kept"), [(Finished, 2), (Discarded, 0)])
def test_the_first_end_of_an_attempt_counts_while_its_group_waits(first: type[Event], kept: int) -> None:
    """A runner that begins anew may log `discarded: lost` behind a `finished` that it could not read yet; admission trains that."""
    *story, finished, _ = execution(0, 1.0, 2)
    ends = [finished, Discarded(execution="g.0.0", reason=DiscardReason.LOST, final=False, wall_us=1)]
    backlog = Backlog()
    for event in (*story, *sorted(ends, key=lambda end: not isinstance(end, first))):
        backlog.see(event)
    assert len(backlog.calls.of("g.0.0")) == kept


Ends = tuple[str, ...]
GOES_ON, LAST = ("finished", "discarded"), ("finished", "final")


def named(event: Event, execution: str) -> Event:
    """The same of another execution."""
    return replace(event, execution=execution)  # type: ignore[call-arg]


def ends(kinds: Ends) -> st.SearchStrategy[Ends]:
    """Any terminal events of an attempt, in any order, and twice."""
    return st.lists(st.sampled_from(kinds), min_size=1, max_size=3).map(tuple)


@dataclass(frozen=True, slots=True)
class Story:
    """An attempt at a place. Each list is of one topic and keeps its order there; the trees and the scores admission alone reads."""

    name: str
    executions: list[Event]
    calls: list[Event]
    judged: list[Event]

    @classmethod
    def of(cls, index: int, attempt: int, calls: int, ends: Ends) -> Story:
        name = f"g.{index}.{attempt}"
        dispatched, *of_calls, finished, scored = [named(event, name) for event in execution(index, float(index), calls)]
        assert isinstance(dispatched, Dispatched)
        said: dict[str, Event] = {"finished": finished}
        for kind in ("discarded", "final"):
            said[kind] = Discarded(execution=name, reason=DiscardReason.LOST, final=kind == "final", wall_us=1)
        forest = Forest()
        trees = [found for e in of_calls if isinstance(found := forest.observe(facts.of_event(e)), TreeClosed)]
        return cls(name, [replace(dispatched, attempt=attempt), *(said[end] for end in ends)], of_calls, [*trees, scored])


@st.composite
def stories(draw: st.DrawFn) -> list[Story]:
    """Of two places, with one attempt before the last or none."""
    found = []
    for index in (0, 1):
        for attempt in (before := range(draw(st.integers(0, 1)))):
            found.append(Story.of(index, attempt, draw(st.integers(0, 2)), draw(ends(GOES_ON))))
        found.append(Story.of(index, len(before), draw(st.integers(0, 2)), draw(ends(LAST))))
    return found


def shuffled(topics: Sequence[Sequence[Event]], random: Random) -> Iterator[Event]:
    """One order of all their events in which each of them keeps its own."""
    rest = [iter(topic) for topic in topics]
    which = [number for number, topic in enumerate(topics) for _ in topic]
    random.shuffle(which)
    return (next(rest[number]) for number in which)


def decision(told: list[Story], random: Random) -> GroupAdmitted:
    """What admission makes of it in some order."""
    admission = Admission(SETTINGS)
    events = shuffled([part for story in told for part in (story.executions, story.judged[:-1], story.judged[-1:])], random)
    records = (Recorded(str(at), "run", at, None, event) for at, event in enumerate(events))
    (found,) = [admitted.event for record in records if (admitted := admission.observe(record)) is not None]
    return found


@settings(deadline=None, max_examples=200)
@given(stories(), st.booleans(), st.randoms(use_true_random=False))
def test_whatever_is_read_first_the_calls_of_what_the_decision_trains_are_kept_and_no_others(
    told: list[Story], late: bool, random: Random
) -> None:
    """Also where an attempt ends twice, by `finished` and by `discarded`, and where one begins that the decision never heard of."""
    group, backlog = decision(told, random), Backlog()
    read = [*told, Story.of(0, 9, 2, ("finished",))] if late else told
    for event in shuffled([[group], *(part for story in read for part in (story.executions, story.calls))], random):
        backlog.see(event)
    kept = OwnedCalls()
    names = {e.execution for e in trained([group])}
    for story in told:
        for event in story.calls if story.name in names else ():
            kept.see(event)
    assert backlog.calls == kept
    assert missing_calls([group], backlog.calls) == ()
    backlog.consume(["g"])
    assert backlog.calls == OwnedCalls()

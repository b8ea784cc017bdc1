"""The tree as a fold: what it refuses, what it ignores, and that it never depends on more than the log so far."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from growth import EXECUTION, Grown, executions, model_call
from hypothesis import given

from gyre_engine.events import CodecError, Recorded, decode, encode
from gyre_engine.events.calls import ExecutionClosed, ProxyOwns, Quarantined, TreeClosed
from gyre_engine.trees import facts
from gyre_engine.trees.forest import Forest
from gyre_engine.trees.tree import TrajectoryTree, TreeError


def grow(calls) -> TrajectoryTree:
    tree = TrajectoryTree(EXECUTION)
    for call in calls:
        tree.add(facts.of_call(call))
    return tree


def closing(calls: int, last: str | None, epoch: int = 1) -> ExecutionClosed:
    return ExecutionClosed(execution=EXECUTION, owner_epoch=epoch, calls=calls, last_call=last)


@given(executions())
def test_facts_read_from_bytes_are_those_of_the_decoded_event(grown: Grown) -> None:
    for number, call in enumerate(grown.calls):
        event = replace(call, discarded_tokens=number)
        found = facts.of_bytes(encode(Recorded("i", "run", 5, None, event)))
        assert (found.id, found.at, found.fact) == ("i", 5, facts.of_call(event))


@pytest.mark.parametrize("value", [b'{"v":', None, b"", b"\x80"])
def test_a_record_is_refused_in_the_codec_s_words(value: bytes | None) -> None:
    with pytest.raises(CodecError) as whole:
        decode(value)
    with pytest.raises(CodecError, match=f"^{re.escape(str(whole.value))}$"):
        facts.of_bytes(value)


@given(executions())
def test_a_tree_grown_call_by_call_equals_a_rebuild_of_every_prefix(grown: Grown) -> None:
    tree = TrajectoryTree(EXECUTION)
    for number, call in enumerate(grown.calls):
        tree.add(facts.of_call(call))
        assert tree == grow(grown.calls[: number + 1])


@given(executions())
def test_every_record_delivered_twice_changes_nothing(grown: Grown) -> None:
    tree = grow([call for call in grown.calls for _ in range(2)] + grown.calls)
    assert tree == grow(grown.calls)


@given(executions())
def test_c16_sampled_tokens_in_the_tree_are_those_in_the_log(grown: Grown) -> None:
    closed = grow(grown.calls).close(closing(len(grown.calls), grown.calls[-1].call))
    assert closed is not None
    assert closed.sampled_tokens == closed.tree_tokens == len(grown.sampled)
    assert closed.delivered == 1.0


def test_an_execution_without_calls_closes_with_an_empty_tree() -> None:
    closed = TrajectoryTree(EXECUTION).close(closing(0, None))
    assert closed is not None and (closed.nodes, closed.delivered) == ((), 1.0)


def test_records_of_a_lower_epoch_are_dropped() -> None:
    tree = grow([model_call(0, None, 0, [1], [2])])
    tree.own(ProxyOwns(execution=EXECUTION, owner_epoch=2, proxy="b"))
    assert not tree.add(facts.of_call(model_call(1, "c0", 2, [3], [4])))
    assert tree.close(closing(1, "c0", epoch=1)) is None
    assert tree.add(facts.of_call(model_call(1, "c0", 2, [3], [4], owner_epoch=2)))


@pytest.mark.parametrize(
    ("parent", "cut", "new", "why"),
    [
        ("c9", 2, [5], "not in the tree"),
        ("c0", 0, [5], "outside its parent's tokens 0 to 3"),
        ("c0", 4, [5], "outside its parent's tokens 0 to 3"),
        (None, 2, [5], "a root with a prefix of 2"),
        (None, 0, [], "a prompt of 0 tokens"),
    ],
)
def test_a_call_that_does_not_fit_is_refused_by_name(parent: str | None, cut: int, new: list[int], why: str) -> None:
    tree = grow([model_call(0, None, 0, [1, 2], [3])])
    with pytest.raises(TreeError, match=f"c1 .*{why}"):
        tree.add(facts.of_call(model_call(1, parent, cut, new, [6])))


def test_a_closing_that_counts_other_calls_than_the_log_holds_is_refused() -> None:
    tree = grow([model_call(0, None, 0, [1, 2], [3])])
    with pytest.raises(TreeError, match=r"closed after 2 calls, the last c1; the log holds 1, the last c0"):
        tree.close(closing(2, "c1"))


def test_a_forest_quarantines_what_does_not_fit_once_and_forgets_what_is_closed() -> None:
    forest = Forest()
    orphan = facts.of_call(replace(model_call(0, "gone", 3, [1], [2]), execution="g.1.0"))
    assert isinstance(forest.observe(orphan), Quarantined)
    assert forest.observe(orphan) is None
    forest.observe(facts.of_call(model_call(0, None, 0, [1], [2])))
    assert isinstance(forest.observe(closing(1, "c0")), TreeClosed)
    assert forest.observe(closing(1, "c0")) is None
    assert forest.observe(facts.of_call(model_call(1, "c0", 2, [3], [4]))) is None
    assert forest.trees == {}

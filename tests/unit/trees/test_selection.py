"""What selection promises, by hand-worked cases, and on random trees whose tokens are known by their identity."""

from __future__ import annotations

import pytest
from growth import EXECUTION, Grown, executions, model_call, nodes, owning, strictly_extends
from hypothesis import given
from hypothesis import strategies as st

from gyre_engine.batching.assemble import AssemblyError, assemble
from gyre_engine.events.calls import Role, TreeNode
from gyre_engine.events.training import AdmittedExecution
from gyre_engine.trees.segments import leaves_of, segments_of
from gyre_engine.trees.select import Selection, SelectionSettings, TrainedRange, select


def output(grown: Grown, item: TrainedRange) -> list[int]:
    call = next(c for c in grown.calls if c.call == item.node)
    return call.output_ids.tolist()[item.start : item.stop]


def test_a_call_that_goes_on_through_a_branch_that_does_not_train_is_the_leaf() -> None:
    """c0 -> c1 (a side call) and c2 that leaves c1 in the middle of its input: c2's path holds the whole of c0."""

    def node(name: str, parent: str | None, cut: int, inputs: int, role: Role) -> TreeNode:
        return TreeNode(name, parent, cut, inputs, 1, True, role, 0)

    found = [node("c0", None, 0, 2, Role.MAIN), node("c1", "c0", 3, 1, Role.SIDE), node("c2", "c1", 4, 0, Role.MAIN)]
    chosen = select(EXECUTION, found, SelectionSettings(1))
    assert [(t.leaf, t.trained_tokens) for t in chosen.trajectories] == [("c2", 2)]


@given(st.data())
def test_without_a_bound_every_trainable_token_of_all_roles_is_trained_exactly_once(data: st.DataObject) -> None:
    grown = data.draw(executions())
    found = data.draw(nodes(grown))
    chosen = select(EXECUTION, found, SelectionSettings(1000, tuple(Role)))
    tokens = [token for ranges in chosen.ranges for item in ranges for token in output(grown, item)]
    assert len(tokens) == len(set(tokens)) and set(tokens) == grown.trainable


@given(st.data())
def test_the_pieces_of_a_tree_hold_every_token_once_and_spell_every_path(data: st.DataObject) -> None:
    grown = data.draw(executions())
    found = data.draw(nodes(grown))
    tree = segments_of(found)
    spelled = [[_token(grown, run.node, at) for run in s.runs for at in range(run.start, run.stop)] for s in tree.segments]
    tokens = [token for part in spelled for token in part]
    assert sorted(tokens) == sorted({token for path in grown.paths.values() for token in path})
    names = [grown.calls[leaf].call for leaf in leaves_of(found)]
    paths = [grown.paths[name] for name in owning(grown)]
    assert names == [n for n in owning(grown) if not any(strictly_extends(p, grown.paths[n]) for p in paths)]
    for leaf in leaves_of(found):
        assert [t for index in reversed(tree.path(leaf)) for t in spelled[index]] == grown.paths[grown.calls[leaf].call]
    for index, segment in enumerate(tree.segments):
        assert [s.parent for s in tree.segments].count(index) != 1
        assert segment.parent < index


def _token(grown: Grown, node: int, at: int) -> int:
    return grown.paths[grown.calls[node].call][at]


@given(st.data(), st.integers(1, 6))
def test_assembled_work_holds_the_selected_tokens_with_their_logprobs_and_versions(data: st.DataObject, j_max: int) -> None:
    grown = data.draw(executions())
    found = data.draw(nodes(grown))
    chosen = select(EXECUTION, found, SelectionSettings(j_max))
    work = assemble(admitted(chosen), grown.calls)
    tokens = [t for segment in work.segments for t in segment.ids.tolist()]
    assert work.trained_tokens == len(work.trained) == chosen.trained_tokens
    trained = [tokens[row] for row in work.trained]
    expected = {t: n for n, ranges in enumerate(chosen.ranges) for item in ranges for t in output(grown, item)}
    assert dict(zip(trained, work.sequences.tolist(), strict=True)) == expected
    assert work.logprobs.tolist() == pytest.approx([-t / 1000 for t in trained])
    assert work.versions.tolist() == [_version(grown, t) for t in trained]
    paths = [set(grown.paths[t.leaf]) for t in chosen.trajectories]
    assert set(tokens) == set().union(*paths) and len(tokens) == len(set(tokens))


def _version(grown: Grown, token: int) -> int:
    call = next(c for c in grown.calls if token in c.output_ids.tolist())
    place = call.output_ids.tolist().index(token)
    return max((s for s in call.weight_spans if s.start <= place), key=lambda s: s.start).version


def admitted(chosen: Selection) -> AdmittedExecution:
    return AdmittedExecution(
        EXECUTION, 0, "score", 1.0, 0.5, chosen.trained_tokens, chosen.trajectories, chosen.left_out, chosen.min_version
    )


def two_leaves() -> list[TreeNode]:
    """A root that sampled 10 tokens, then two ways on with 10 and 30 sampled tokens: path weights 20 and 40."""
    return [
        TreeNode("a", None, 0, 5, 10, True, Role.MAIN, 0),
        TreeNode("b", "a", 15, 1, 10, True, Role.MAIN, 3),
        TreeNode("c", "a", 15, 1, 30, True, Role.MAIN, 2),
    ]


def test_a_shared_prefix_is_trained_once() -> None:
    chosen = select("x.0.0", two_leaves(), SelectionSettings())
    assert sorted(t.trained_tokens for t in chosen.trajectories) in ([10, 40], [20, 30])
    assert (chosen.trained_tokens, chosen.min_version, chosen.left_out) == (50, 0, ())


def test_the_same_tree_gives_the_same_selection_and_another_execution_may_not() -> None:
    again = [select("x.0.0", two_leaves(), SelectionSettings(1)) for _ in range(3)]
    assert again[0] == again[1] == again[2]
    assert {select(f"{n}.0.0", two_leaves(), SelectionSettings(1)).trajectories[0].leaf for n in range(20)} == {"b", "c"}


def test_what_is_beyond_j_max_is_left_out_by_leaf_and_reason() -> None:
    chosen = select("x.0.0", two_leaves(), SelectionSettings(1))
    other = {"b": ("c", 30), "c": ("b", 10)}[chosen.trajectories[0].leaf]
    assert [(out.what, out.reason, out.tokens) for out in chosen.left_out] == [(other[0], "j-max", other[1])]


def test_an_abandoned_end_leaves_the_agents_own_call_before_it_as_the_leaf() -> None:
    tree = [
        TreeNode("a", None, 0, 5, 10, True, Role.MAIN, 0),
        TreeNode("b", "a", 15, 2, 7, True, Role.ABANDONED, 0),
        TreeNode("t", None, 0, 4, 3, True, Role.SIDE, 0),
    ]
    chosen = select("x.0.0", tree, SelectionSettings())
    assert [(t.leaf, t.trained_tokens) for t in chosen.trajectories] == [("a", 10)]
    assert [(o.what, o.reason, o.tokens) for o in chosen.left_out] == [("b", "role abandoned", 7), ("t", "role side", 3)]


def test_settings_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ValueError, match="j_max is 0"):
        SelectionSettings(0)
    with pytest.raises(ValueError, match="names a role twice: main, main"):
        SelectionSettings(1, (Role.MAIN, Role.MAIN))


def test_calls_that_do_not_give_what_was_admitted_are_refused() -> None:
    call = model_call(0, None, 0, [1, 2], [3, 4])
    chosen = select(EXECUTION, [TreeNode("c0", None, 0, 2, 2, True, Role.MAIN, 0)], SelectionSettings())
    with pytest.raises(AssemblyError, match="no call c0"):
        assemble(admitted(chosen), [])
    with pytest.raises(AssemblyError, match=r"leaf c0 was admitted with 2 trained tokens, its calls hold 1"):
        assemble(admitted(chosen), [model_call(0, None, 0, [1, 2], [3])])
    assert assemble(admitted(chosen), [call]).trained.tolist() == [2, 3]

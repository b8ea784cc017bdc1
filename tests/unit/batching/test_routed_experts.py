"""Routed experts from the calls to the micro-step: each token has those of the first call that computed it, and none is made up."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gyre_engine.batching.assemble import AssemblyError, assemble
from gyre_engine.batching.microstep import InvalidMicroStep
from gyre_engine.batching.packing import pack
from gyre_engine.batching.work import ExecutionWork
from gyre_engine.events.calls import Continuity, Finish, InputSpan, ModelCall, Provenance, Role, WeightSpan
from gyre_engine.events.training import AdmittedExecution, SelectedTrajectory
from gyre_engine.experts import NO_ROWS, BadRouting, Experts, side_by_side, table
from gyre_engine.training.ranks.splitting import split

WIDTH = 3


@dataclass(frozen=True)
class Node:
    """What a test says of a call: its parent's number, how much of the parent's path it shares, its own tokens."""

    parent: int
    cut: int
    new: int
    out: int


def rows_at(call: int, first: int, count: int) -> np.ndarray:
    """Told by call `call` for path positions `first` ..: the call, and the position in two bytes."""
    at = np.arange(first, first + count)
    return np.stack([np.full(count, call), at // 256, at % 256], axis=1).astype(np.uint8)


def calls_of(nodes: list[Node], silent: frozenset[int] = frozenset()) -> list[ModelCall]:
    """Calls whose tokens are all different, so that a token tells its call and position."""
    calls: list[ModelCall] = []
    for number, node in enumerate(nodes):
        parent, cut = owner(nodes, node.parent, node.cut)
        first, path = max(0, cut - 1), cut + node.new + node.out
        own = 1000 * number + np.arange(node.new + node.out, dtype=np.int32)
        routed = np.empty(0, np.uint8) if number in silent else rows_at(number, first, max(0, path - 1 - first)).reshape(-1)
        calls.append(
            ModelCall(
                execution="e", call=f"c{number}", number=number, owner_epoch=1, parent=None if parent < 0 else f"c{parent}",
                prefix_len=cut, prefix_hash=b"", new_input_ids=own[: node.new], output_ids=own[node.new :],
                logprobs=np.zeros(node.out, np.float32), weight_spans=(WeightSpan(0, 0, "c"),),
                input_spans=(InputSpan(0, Provenance.USER),), finish=Finish.STOP, continuity=Continuity.BRIDGED, dialect="chat",
                temperature=1.0, top_p=1.0, max_tokens=9, tools=0, messages=1, shape="s", routed_experts=routed,
            )
        )  # fmt: skip
    return calls


def owner(nodes: list[Node], parent: int, cut: int) -> tuple[int, int]:
    """The call whose own delta holds the last shared token; a root has none."""
    while parent >= 0 and cut > 0:
        start = owner(nodes, nodes[parent].parent, nodes[parent].cut)[1]
        if cut > start:
            return parent, cut
        parent = nodes[parent].parent
    return -1, 0


def length(nodes: list[Node], number: int) -> int:
    node = nodes[number]
    return owner(nodes, node.parent, node.cut)[1] + node.new + node.out


@st.composite
def trees(draw: st.DrawFn) -> tuple[list[Node], list[int], frozenset[int]]:
    """Calls, the leaves that were selected, and the calls without a record."""
    nodes: list[Node] = []
    for number in range(draw(st.integers(1, 7))):
        parent = draw(st.integers(-1, number - 1))
        cut = draw(st.integers(0, length(nodes, parent))) if parent >= 0 else 0
        if parent >= 0 and draw(st.booleans()):
            cut = length(nodes, parent)  # most calls go on from the very end
        nodes.append(Node(parent, cut, draw(st.integers(1, 4)), draw(st.integers(1, 4))))
    leaves = draw(st.lists(st.sampled_from(range(len(nodes))), min_size=1, max_size=3, unique=True))
    return nodes, leaves, draw(st.frozensets(st.sampled_from(range(len(nodes))), max_size=2))


def work_of(calls: list[ModelCall], leaves: list[int]) -> ExecutionWork:
    """All that the selected paths sampled is trained once: by the first of them."""
    taken: set[str] = set()
    trajectories = []
    for leaf in leaves:
        count, at, stop = 0, leaf, calls[leaf].prompt_tokens + len(calls[leaf].output_ids)
        while True:
            call = calls[at]
            ids = call.output_ids[: max(0, stop - call.prompt_tokens)].tolist()
            fresh = [f"{at}.{i}" for i in ids if f"{at}.{i}" not in taken]
            taken.update(fresh)
            count += len(fresh)
            if call.parent is None:
                break
            at, stop = int(call.parent[1:]), call.prefix_len
        trajectories.append(SelectedTrajectory(leaf=f"c{leaf}", role=Role.MAIN, trained_tokens=count))
    admitted = AdmittedExecution(
        execution="e", index=0, score="s", reward=1.0, advantage=1.0, trained_tokens=sum(t.trained_tokens for t in trajectories),
        trajectories=tuple(trajectories), left_out=(), min_version=0,
    )  # fmt: skip
    return assemble(admitted, calls)


def on_paths(nodes: list[Node], leaves: list[int]) -> set[int]:
    """Calls of which a selected path holds a token."""
    found: set[int] = set()
    for leaf in leaves:
        at = leaf
        while at >= 0:
            found.add(at)
            at = owner(nodes, nodes[at].parent, nodes[at].cut)[0]
    return found


def expected(nodes: list[Node], token: int, silent: frozenset[int], selected: set[int]) -> list[int]:
    """By hand: the row that a token's call told, or, of the last token of a path, the first selected call that goes on from there."""
    number, offset = divmod(token, 1000)
    cut, end = owner(nodes, nodes[number].parent, nodes[number].cut)[1], length(nodes, number)
    position = cut + offset
    tellers = (
        [number]
        if position < end - 1
        else [n for n, x in enumerate(nodes) if owner(nodes, x.parent, x.cut) == (number, end) and n in selected]
    )
    teller = next((n for n in tellers if n not in silent), None)
    return [255] * WIDTH if teller is None else [teller, position // 256, position % 256]


@settings(deadline=None, max_examples=150)
@given(trees())
def test_every_token_of_a_pack_has_what_the_first_call_that_computed_it_told(
    tree: tuple[list[Node], list[int], frozenset[int]],
) -> None:
    nodes, leaves, silent = tree
    work, selected = work_of(calls_of(nodes, silent), leaves), on_paths(nodes, leaves)
    for budget in (1000, 12):
        for step in pack([work], budget):
            for part in (step, *split(step, 2)):
                if not part.experts.size:
                    assert all(expected(nodes, int(t), silent, selected) == [255] * WIDTH for t in part.ids)
                else:
                    assert part.experts.tolist() == [expected(nodes, int(token), silent, selected) for token in part.ids]


@settings(deadline=None, max_examples=60)
@given(trees())
def test_what_a_pack_holds_does_not_depend_on_how_far_the_core_has_read(
    tree: tuple[list[Node], list[int], frozenset[int]],
) -> None:
    """A core waits for the selected leaves; calls after them on the log, with or without a record, change no byte."""
    nodes, leaves, silent = tree
    calls = calls_of(nodes, silent)
    early, late = pack([work_of(calls[: max(leaves) + 1], leaves)], 1000), pack([work_of(calls, leaves)], 1000)
    assert [p.ids.tolist() for p in early] == [p.ids.tolist() for p in late]
    assert [p.experts.tolist() for p in early] == [p.experts.tolist() for p in late]


def test_where_nothing_was_recorded_nothing_is_carried() -> None:
    [step] = pack([work_of(calls_of([Node(-1, 0, 3, 4)], frozenset({0})), [0])], 100)
    assert step.experts is NO_ROWS


def test_a_pack_of_recorded_and_unrecorded_executions_leaves_the_latter_unknown() -> None:
    told, silent = (work_of(calls_of([Node(-1, 0, 3, 4)], quiet), [0]) for quiet in (frozenset[int](), frozenset({0})))
    [step] = pack([told, replace(silent, execution="f")], 100)
    # the last of the seven tokens is computed for nothing: no target depends on it, but it stands in the pack
    assert step.experts[:6].tolist() == rows_at(0, 0, 6).tolist()
    assert np.all(step.experts[6:] == 255) and len(step.experts) == 14


def test_records_of_two_models_or_of_no_size_are_refused() -> None:
    calls = calls_of([Node(-1, 0, 3, 4), Node(0, 7, 2, 2)])
    with pytest.raises(AssemblyError, match="execution e: .*different models"):
        work_of([calls[0], replace(calls[1], routed_experts=np.zeros(8, np.uint8))], [1])
    with pytest.raises(AssemblyError, match="17 bytes of routed experts do not divide among 6 tokens"):
        work_of([replace(calls[0], routed_experts=np.zeros(17, np.uint8))], [0])
    with pytest.raises(BadRouting, match="different models"):
        side_by_side([(np.zeros((2, 3), np.uint8), 2), (np.zeros((2, 4), np.uint8), 2)])
    [step] = pack([work_of(calls, [1])], 100)
    with pytest.raises(InvalidMicroStep, match="experts has 1 rows"):
        replace(step, experts=np.zeros((1, 3), np.uint8))


@pytest.mark.parametrize(("count", "numbers"), [(255, 1), (256, 2), (512, 2)])
def test_a_record_is_read_as_it_was_written(count: int, numbers: int) -> None:
    experts = Experts(count, 4, 8, True, (0, 3))
    rng = np.random.default_rng(count)
    routed = np.stack([[rng.permutation(count)[:4] for _ in experts.layers] for _ in range(20)])
    routed[7] = -1
    rows = experts.rows(routed)
    assert rows.shape == (20, experts.width) == (20, 8 * numbers)
    assert np.array_equal(experts.routed(table(rows.reshape(-1), 20)), routed)


@pytest.mark.parametrize(("row", "words"), [([0, 6], "beyond 5"), ([2, 2], "twice"), ([1, 2, 3], "3 bytes a token")])
def test_a_record_of_another_model_is_refused(row: list[int], words: str) -> None:
    with pytest.raises(BadRouting, match=words):
        Experts(6, 2, 8, True, (1,)).routed(np.array([row], dtype=np.uint8))

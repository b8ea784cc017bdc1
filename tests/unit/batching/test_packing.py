"""Packing: every trained token once, weights per execution, and each token sees its path and nothing else."""

from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gyre_engine.batching import ExecutionWork, PackedMicroStep, Segment, pack
from gyre_engine.batching.microstep import InvalidMicroStep
from gyre_engine.batching.work import InvalidWork
from gyre_engine.losses import AGGREGATES
from tests.works import first_leaves


def parts_of(step):
    """Every field as bytes."""
    values = (getattr(step, f.name) for f in fields(PackedMicroStep))
    return [value.tobytes() if isinstance(value, np.ndarray) else value for value in values]


def work(execution, segments, trained, advantage=1.0, sequences=None):
    """Ids are unique within the execution; log-probability and version say which token they belong to.

    sequences: the trajectory of each trained token; None: that of the first leaf below it
    """
    tokens = sum(size for _, size in segments)
    ids = np.arange(tokens, dtype=np.int32)
    starts = np.cumsum([0, *[size for _, size in segments]])
    parts = tuple(Segment(ids[a:b], parent) for (parent, _), a, b in zip(segments, starts[:-1], starts[1:], strict=True))
    trained = np.array(trained, dtype=np.int32)
    return ExecutionWork(
        execution=execution,
        segments=parts,
        trained=trained,
        logprobs=-trained.astype(np.float32),
        versions=trained + 7,
        advantage=advantage,
        trained_tokens=len(trained),
        sequences=first_leaves(parts, trained) if sequences is None else np.array(sequences, dtype=np.int32),
    )


@st.composite
def trees(draw, name="e"):
    segments, path = [], []
    for index in range(draw(st.integers(1, 8))):
        depth = draw(st.integers(0, len(path))) if index else 0
        path = path[:depth]
        segments.append((path[-1] if path else -1, draw(st.integers(1, 6))))
        path.append(index)
    starts = np.cumsum([0, *[size for _, size in segments]])
    roots = {int(starts[i]) for i, (parent, _) in enumerate(segments) if parent < 0}
    free = [token for token in range(int(starts[-1])) if token not in roots]
    trained = sorted(draw(st.sets(st.sampled_from(free), min_size=1))) if free else []
    return work(name, segments, trained, draw(st.floats(-3, 3)))


@st.composite
def forests(draw):
    return [draw(trees(name=f"e{index}")) for index in range(draw(st.integers(1, 4)))]


def path_of(item, token):
    """Ids from the root to `token` (ids are positions within the execution), straight from the parents."""
    starts = np.cumsum([0, *[len(segment.ids) for segment in item.segments]])
    index = int(np.searchsorted(starts, token, side="right")) - 1
    path = list(range(int(starts[index]), token + 1))
    while (index := item.segments[index].parent) >= 0:
        path = [*range(int(starts[index]), int(starts[index + 1])), *path]
    return path


def visible(step, query):
    return [j for j in range(step.tokens) if j <= query < step.end[j]]


def targets(step):
    for execution, first, count in step.executions:
        for index in range(first, first + count):
            yield execution, index


@settings(deadline=None)
@given(forests(), st.integers(1, 40))
def test_every_trained_token_is_a_target_exactly_once(works, max_tokens):
    seen = [(name, int(step.ids[step.dst[i]])) for step in pack(works, max_tokens) for name, i in targets(step)]
    assert sorted(seen) == sorted((item.execution, int(token)) for item in works for token in item.trained)


@settings(deadline=None)
@given(forests(), st.integers(1, 40))
def test_weights_of_an_execution_sum_to_its_advantage_however_it_is_cut(works, max_tokens):
    sums = dict.fromkeys([item.execution for item in works if len(item.trained)], 0.0)
    for step in pack(works, max_tokens):
        for name, i in targets(step):
            sums[name] += step.weight[i]
    expected = {item.execution: item.advantage for item in works if len(item.trained)}
    assert sums == pytest.approx(expected, abs=1e-12)


@settings(deadline=None)
@given(forests(), st.integers(1, 40))
def test_a_target_sees_its_path_at_its_positions_and_nothing_else(works, max_tokens):
    by_name = {item.execution: item for item in works}
    for step in pack(works, max_tokens):
        for name, i in targets(step):
            rows = visible(step, step.src[i])
            expected = path_of(by_name[name], int(step.ids[step.dst[i]]))
            assert [int(step.ids[row]) for row in rows] == expected[:-1]
            assert [int(step.position[row]) for row in rows] == list(range(len(expected) - 1))
            assert visible(step, step.dst[i]) == [*rows, int(step.dst[i])]


@settings(deadline=None)
@given(forests(), st.integers(1, 40))
def test_what_belongs_to_a_target_stays_with_it(works, max_tokens):
    for step in pack(works, max_tokens):
        token = step.ids[step.dst]
        assert np.array_equal(step.logprobs, -token.astype(np.float32))
        assert np.array_equal(step.versions, token + 7)


@settings(deadline=None)
@given(forests(), st.integers(1, 40))
def test_a_micro_step_is_within_its_limit_unless_one_path_is_longer(works, max_tokens):
    longest = max(len(path_of(item, int(token))) for item in works for token in [*item.trained, 0])
    assert all(step.tokens <= max(max_tokens, longest) for step in pack(works, max_tokens))


@settings(deadline=None)
@given(forests(), st.integers(1, 40))
def test_packing_is_deterministic(works, max_tokens):
    first, again = ([parts_of(step) for step in pack(works, max_tokens)] for _ in range(2))
    assert first == again


def test_c21_an_advantage_lies_on_exactly_the_sampled_tokens():
    """C21: Prompt 4, sampled 3, tool 5, sampled 2 (positions 4-6 and 12-13), advantage 0.7; a longer row beside it."""
    first = work("a", [(-1, 14)], [4, 5, 6, 12, 13], advantage=0.7)
    second = work("b", [(-1, 20)], [2, 19], advantage=-1.0)
    (step,) = pack([first, second], 100, aggregate="token")
    assert step.executions == (("a", 0, 5), ("b", 5, 2))
    assert step.dst.tolist() == [4, 5, 6, 12, 13, 14 + 2, 14 + 19]
    assert step.src.tolist() == [3, 4, 5, 11, 12, 14 + 1, 14 + 18]
    assert step.weight.tolist() == [0.7] * 5 + [-1.0] * 2


def test_one_row_predicts_every_branch_at_a_fork():
    """Root of 3, two children whose first tokens (3 and 5) are trained: row 2 predicts both."""
    (step,) = pack([work("a", [(-1, 3), (0, 2), (0, 2)], [3, 4, 5, 6])], 100)
    assert step.src.tolist() == [2, 3, 2, 5]
    assert step.end.tolist() == [7, 7, 7, 5, 5, 7, 7]
    assert step.position.tolist() == [0, 1, 2, 3, 4, 3, 4]


def test_what_follows_the_last_trained_token_is_not_computed():
    """Root of 3 with leaves of 4: the first is trained at its 2nd token, the other not at all."""
    (step,) = pack([work("a", [(-1, 3), (0, 4), (0, 4)], [4])], 100)
    assert step.tokens == 5


def test_a_large_execution_repeats_its_prefix_as_context():
    """Prefix 10, two leaves of 5, limit 16: two micro-steps of 15; the prefix trains with its own trajectory only."""
    item = work("a", [(-1, 10), (0, 5), (0, 5)], [9, *range(10, 20)], sequences=[1, *[0] * 5, *[1] * 5])
    first, second = pack([item], 16)
    assert (first.tokens, second.tokens) == (15, 15)
    assert (first.targets, second.targets) == (5, 6)
    assert set(second.sequence.tolist()) == {0}


def test_aggregates_weigh_by_execution_token_or_trajectory():
    """Advantage 6; a trajectory of 2 targets and one of 1."""
    item = work("a", [(-1, 2), (0, 2), (0, 1)], [2, 3, 4], advantage=6.0)
    weights = {name: pack([item], 9, aggregate=name)[0].weight.tolist() for name in AGGREGATES}
    assert weights == {
        "two-level": [2.0, 2.0, 2.0],
        "token": [6.0, 6.0, 6.0],
        "sequence": [3.0, 3.0, 6.0],
        "constant": [6.0, 6.0, 6.0],
    }


@settings(deadline=None)
@given(trees(), st.integers(1, 40))
def test_the_shares_of_an_execution_add_up_to_what_the_table_says_however_it_branched_and_was_cut(item, max_tokens):
    """Also where the advantage is 0: a term without it is weighed all the same."""
    item = replace(item, advantage=0.0)
    trained = len(item.trained)
    trajectories = {int(step.sequence.max()) + 1 for step in pack([item], 10**6)}
    expected = {"two-level": {1} if trained else set(), "token": {trained} - {0}, "sequence": trajectories}
    expected["constant"] = expected["token"]
    for name in AGGREGATES:
        steps = pack([item], max_tokens, aggregate=name)
        total = sum(step.share.sum() for step in steps)
        assert total == pytest.approx(sum(expected[name]), rel=1e-12)
        assert all((step.weight == 0).all() and (step.share > 0).all() for step in steps)


@settings(deadline=None)
@given(forests(), st.sampled_from(AGGREGATES))
def test_a_weight_is_the_share_times_the_advantage(works, aggregate):
    advantages = {item.execution: item.advantage for item in works}
    for step in pack(works, 30, aggregate=aggregate):
        for name, index in targets(step):
            assert step.weight[index] == pytest.approx(advantages[name] * step.share[index], rel=1e-15)


@settings(deadline=None)
@given(forests(), st.integers(1, 40), st.booleans())
def test_the_targets_of_a_trajectory_stay_together(works, max_tokens, trees):
    """However an execution is cut: a loss over sequences sees each whole, and alone under its number."""
    home = {}
    for item in works:
        for step in pack([item], 10**6):
            home |= {(name, int(step.ids[step.dst[i]])): (name, int(step.sequence[i])) for name, i in targets(step)}
    found = {}
    for number, step in enumerate(pack(works, max_tokens, trees=trees)):
        for name, i in targets(step):
            found.setdefault((number, int(step.sequence[i])), set()).add(home[name, int(step.ids[step.dst[i]])])
    assert all(len(trajectories) == 1 for trajectories in found.values())
    assert len(found) == len(set(home.values()))


def test_a_record_of_an_earlier_version_has_no_shares_and_reads_all_the_same():
    (step,) = pack([work("a", [(-1, 5)], [3, 4])], 9)
    given = {f.name: getattr(step, f.name) for f in fields(PackedMicroStep) if f.name not in ("share", "reference")}
    old = PackedMicroStep(**given)
    assert (len(old.share), len(old.reference), old.weight.tolist()) == (0, 0, step.weight.tolist())
    with pytest.raises(InvalidMicroStep, match="share has 1 entries, expected 2"):
        replace(step, share=np.ones(1))


def test_a_path_beyond_the_context_is_refused_by_name():
    with pytest.raises(InvalidWork, match=r"execution a: a path of 14 tokens is longer than the model context of 13"):
        pack([work("a", [(-1, 14)], [13])], 4, context=13)
    assert [step.tokens for step in pack([work("a", [(-1, 14)], [13])], 4, context=14)] == [14]


def test_work_that_contradicts_itself_is_refused():
    good = work("a", [(-1, 3), (0, 2)], [1, 4])
    for change, words in (
        ({"segments": (good.segments[1], good.segments[0])}, "depth-first"),
        ({"trained": np.array([4, 1])}, "ascend"),
        ({"logprobs": good.logprobs[:1]}, "1 logprobs"),
        ({"sequences": good.sequences[:1]}, "1 sequences"),
        ({"trained_tokens": 1}, "frozen count 1"),
        ({"advantage": float("nan")}, "not finite"),
        ({"segments": (*good.segments, Segment(np.array([], np.int32), 0))}, "empty"),
    ):
        with pytest.raises(InvalidWork, match=words):
            replace(good, **change)
    with pytest.raises(InvalidWork, match="no context"):
        pack([work("a", [(-1, 3)], [0])], 9)
    with pytest.raises(InvalidWork, match="two paths"):
        pack([work("a", [(-1, 1), (0, 1), (0, 1)], [1, 2], sequences=[0, 0])], 9)

"""Parts against the rule they come from: key j is visible to query i iff j <= i < end[j]."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from gyre_engine.training.model.visibility import Part, parts, visible_blocks


@st.composite
def ends(draw):
    """`end` of a random forest of tokens, from each token's parent: the end of its subtree."""
    parents, path = [], []
    for token in range(draw(st.integers(1, 30))):
        depth = draw(st.one_of(st.just(len(path)), st.integers(0, len(path))))
        path = path[:depth]
        parents.append(path[-1] if path else -1)
        path.append(token)
    end = list(range(1, len(parents) + 1))
    for token in range(len(parents) - 1, -1, -1):
        if parents[token] >= 0:
            end[parents[token]] = max(end[parents[token]], end[token])
    return np.array(end, dtype=np.int32)


def rule(end):
    rows = np.arange(len(end))
    return (rows[None] <= rows[:, None]) & (rows[:, None] < end[None])


@settings(deadline=None)
@given(ends())
def test_parts_see_exactly_what_the_rule_says_and_once(end):
    seen = np.zeros((len(end), len(end)), dtype=int)
    found = parts(end)
    for part in found:
        for query in range(part.start, part.stop):
            seen[query, part.key_start : query + 1 if part.causal else part.key_stop] += 1
    assert np.array_equal(seen, rule(end).astype(int))
    own = [part for part in found if part.causal]
    assert found[: len(own)] == tuple(own)
    assert [row for part in own for row in range(part.start, part.stop)] == list(range(len(end)))


def test_a_trunk_and_its_first_leaf_are_one_part_and_all_other_leaves_see_the_trunk_in_one():
    """Chains of 3 and 2; then a trunk of 2 with leaves of 1, 2 and 1."""
    assert parts(np.array([3, 3, 3, 5, 5], dtype=np.int32)) == (Part(0, 3, 0, 3), Part(3, 5, 3, 5))
    assert parts(np.array([6, 6, 3, 5, 5, 6], dtype=np.int32)) == (
        Part(0, 3, 0, 3),
        Part(3, 5, 3, 5),
        Part(5, 6, 5, 6),
        Part(3, 6, 0, 2),
    )


@settings(deadline=None)
@given(ends(), st.integers(1, 7))
def test_blocks_are_seen_whole_in_part_or_not_at_all(end, block):
    """Blocks of `block` rows by hand; a whole block never misses a key that the last, shorter blocks do not have."""
    partly, whole = visible_blocks(end, block)
    mask = rule(end)
    for i in range(len(partly)):
        for j in range(len(partly)):
            tile = mask[i * block : (i + 1) * block, j * block : (j + 1) * block]
            assert bool(whole[i, j]) == bool(tile.all() and i != j)
            assert bool(partly[i, j]) == bool(tile.any() and not whole[i, j])

"""Splits of trees that are larger than a micro-step, against every partition of their leaves."""

from hypothesis import example, given, settings
from hypothesis import strategies as st

from gyre_engine.batching.grouping import EXACT_LEAVES, groups_of_leaves


@st.composite
def trees(draw, most):
    """(parents, lengths, leaves) of a forest, depth-first, with at most `most` leaves."""
    parents, path = [], []
    for index in range(draw(st.integers(1, 2 * most))):
        path = path[: draw(st.integers(0, len(path)))]
        parents.append(path[-1] if path else -1)
        path.append(index)
    lengths = draw(st.lists(st.integers(1, 9), min_size=len(parents), max_size=len(parents)))
    leaves = [i for i in range(len(parents)) if i not in parents]
    while len(leaves) > most:  # what is not trained is kept with no tokens, as `cutting` does
        lengths[leaves.pop()] = 0
    return parents, lengths, leaves


def union(parents, lengths, leaves):
    seen = set()
    for leaf in leaves:
        while leaf >= 0:
            seen.add(leaf)
            leaf = parents[leaf]
    return sum(lengths[i] for i in seen)


def partitions(items):
    if not items:
        yield []
        return
    for rest in partitions(items[1:]):
        yield [[items[0]], *rest]
        for i, group in enumerate(rest):
            yield [*rest[:i], [items[0], *group], *rest[i + 1 :]]


def greedy(parents, lengths, leaves, budget):
    """Leaves in order, as many as fit."""
    groups = [[]]
    for leaf in leaves:
        if groups[-1] and union(parents, lengths, [*groups[-1], leaf]) > budget:
            groups.append([])
        groups[-1].append(leaf)
    return groups


def cost(parents, lengths, groups):
    return sum(union(parents, lengths, group) for group in groups), len(groups)


def check_partition(tree, budget, groups):
    parents, lengths, leaves = tree
    assert sorted(leaf for group in groups for leaf in group) == leaves
    assert [group[0] for group in groups] == sorted(group[0] for group in groups)
    for group in groups:
        assert list(group) == sorted(group)
        assert len(group) == 1 or union(parents, lengths, group) <= budget


STAR = ([-1, 0, 0, 0, 0], [10, 6, 1, 6, 1], [1, 2, 3, 4])


@settings(deadline=None)
@given(trees(most=6), st.integers(0, 40))
@example(STAR, 17)
def test_no_partition_computes_fewer_tokens_nor_as_few_in_fewer_pieces(tree, budget):
    parents, lengths, leaves = tree
    groups = groups_of_leaves(parents, lengths, leaves, budget)
    check_partition(tree, budget, groups)
    allowed = (
        cost(parents, lengths, found)
        for found in partitions(leaves)
        if all(len(group) == 1 or union(parents, lengths, group) <= budget for group in found)
    )
    assert cost(parents, lengths, groups) == min(allowed)


def test_leaves_that_fit_together_are_found_although_others_stand_between():
    """A trunk of 10 and leaves of 6, 1, 6 and 1. Room for 17: 10 + 6 + 1 twice. For 16: 16, 12, 16, and in order 16, 11, 16, 11."""
    assert groups_of_leaves(*STAR, 17) == [(1, 2), (3, 4)]
    assert groups_of_leaves(*STAR, 16) == [(1,), (2, 4), (3,)]
    assert cost(*STAR[:2], greedy(*STAR, 16))[0] == 54 > 44


def test_a_path_that_is_too_long_is_a_group_of_its_own():
    assert groups_of_leaves([-1, 0, 0, 0], [5, 9, 2, 2], [1, 2, 3], 9) == [(1,), (2, 3)]
    assert groups_of_leaves([-1, 0, 0], [5, 1, 1], [1, 2], 0) == [(1,), (2,)]


@settings(deadline=None, max_examples=60)
@given(trees(most=40), st.integers(0, 60))
def test_larger_trees_never_take_more_than_leaves_in_order(tree, budget):
    groups = groups_of_leaves(*tree, budget)
    check_partition(tree, budget, groups)
    assert cost(*tree[:2], groups) <= cost(*tree[:2], greedy(*tree, budget))


def test_branches_are_joined_where_they_share_most():
    """A trunk of 100; seven times a leaf of 10, then a fork of 50 with two leaves of 1. Room for 161.

    Leaves in order split every fork (10 + 50 + 1 fit). Forks that stay whole take 152 each; the leaves of 10 go six together and one:
    7 x 152 + 160 + 110.
    """
    parents = [-1, *(p for turn in range(7) for p in (0, 0, 4 * turn + 2, 4 * turn + 2))]
    lengths = [100, *[10, 50, 1, 1] * 7]
    leaves = [i for i in range(1, 29) if i % 4 != 2]
    assert len(leaves) > EXACT_LEAVES
    groups = groups_of_leaves(parents, lengths, leaves, 161)
    assert cost(parents, lengths, groups) == (1334, 9)
    assert cost(parents, lengths, greedy(parents, lengths, leaves, 161))[0] > 1334


def test_a_thousand_leaves_are_split_well():
    """A trunk of 1,000 with leaves of 1 to 10 by turns, room for 1,100: their 5,500 tokens fill 55 pieces to the last token."""
    sizes = [1 + i * 7 % 10 for i in range(1000)]
    parents, lengths = [-1] + [0] * 1000, [1000, *sizes]
    groups = groups_of_leaves(parents, lengths, range(1, 1001), 1100)
    assert cost(parents, lengths, groups) == (55 * 1100, 55)

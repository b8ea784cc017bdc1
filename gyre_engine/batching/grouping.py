"""A tree that is larger than a micro-step is split at branches, so that as few tokens as possible are computed twice.

Each group of leaves becomes a piece: the union of their paths. The fewest tokens in all come first, then the fewest pieces. Exact
for a dozen leaves; for more, the better of two rules: leaves in order as long as they fit, and branches joined from the leaves up,
for the deeper two branches meet the more they share. Deterministic. Segments are depth-first, parents before children.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence

EXACT_LEAVES = 12

Group = tuple[int, ...]
"""Leaves, ascending."""


def groups_of_leaves(parents: Sequence[int], lengths: Sequence[int], leaves: Sequence[int], budget: int) -> list[Group]:
    """The leaves (ascending) in groups whose paths have at most `budget` tokens together, in order of their first leaves.

    parents: of each segment, -1 for a root; lengths: its tokens. A path longer than the budget is a group of its own.
    """
    tree = Tree(parents, lengths)
    whole = [tuple(leaves)]
    if tree.tokens(leaves) <= budget:
        return whole
    if len(leaves) <= EXACT_LEAVES:
        return _fewest(tree, leaves, budget)
    candidates = (_in_order(tree, leaves, budget), _from_below(tree, leaves, budget))
    return min(candidates, key=lambda groups: (sum(map(tree.tokens, groups)), len(groups)))


class Tree:
    """Segments with their tokens."""

    def __init__(self, parents: Sequence[int], lengths: Sequence[int]) -> None:
        self.parents, self.lengths = [int(p) for p in parents], [int(n) for n in lengths]
        self.to = list(self.lengths)
        """Tokens from the root to the end of each segment."""
        for index, parent in enumerate(self.parents):
            if parent >= 0:
                self.to[index] += self.to[parent]

    def fresh(self, leaf: int, held: set[int]) -> list[int]:
        """Segments of the leaf's path that are not among those held, which are whole paths."""
        found = []
        while leaf >= 0 and leaf not in held:
            found.append(leaf)
            leaf = self.parents[leaf]
        return found

    def tokens(self, leaves: Sequence[int]) -> int:
        """Of the union of their paths."""
        held: set[int] = set()
        for leaf in leaves:
            held.update(self.fresh(leaf, held))
        return sum(self.lengths[index] for index in held)


def _in_order(tree: Tree, leaves: Sequence[int], budget: int) -> list[Group]:
    """Leaves as they come, as many as fit."""
    groups: list[list[int]] = [[]]
    held: set[int] = set()
    size = 0
    for leaf in leaves:
        fresh = tree.fresh(leaf, held)
        added = sum(tree.lengths[index] for index in fresh)
        if groups[-1] and size + added > budget:
            groups.append([])
            held, size = set(), 0
            fresh, added = tree.fresh(leaf, held), tree.to[leaf]
        groups[-1].append(leaf)
        held.update(fresh)
        size += added
    return [tuple(group) for group in groups]


Bin = tuple[int, Group]
"""Tokens below the segment at hand, and whose."""


def _from_below(tree: Tree, leaves: Sequence[int], budget: int) -> list[Group]:
    """At each segment, from the last up: what its children could not join is joined as long as the path above it fits too."""
    bins: list[list[Bin]] = [[] for _ in tree.parents]
    roots: list[Bin] = []
    for leaf in leaves:
        bins[leaf] = [(0, (leaf,))]
    for index in range(len(bins) - 1, -1, -1):
        joined = _joined(bins[index], budget - tree.to[index])
        bins[index] = []
        parent = tree.parents[index]
        up = [(tokens + tree.lengths[index], group) for tokens, group in joined]
        (roots if parent < 0 else bins[parent]).extend(up)
    return sorted(tuple(sorted(group)) for _, group in _joined(roots, budget))


def _joined(bins: list[Bin], room: int) -> list[Bin]:
    """Bins of at most `room` tokens, where several fit into one: the largest first, each to the fullest that has room for it."""
    smallest = sorted(tokens for tokens, _ in bins)[:2]
    if len(smallest) < 2 or sum(smallest) > room:
        return bins
    full: list[Bin] = []
    open_: list[tuple[int, int, Group]] = []  # room left, a number that tells equals apart, whose
    for number, (tokens, group) in enumerate(sorted(bins, key=lambda b: (-b[0], b[1]))):
        if tokens > room:
            full.append((tokens, group))
            continue
        at = bisect_left(open_, (tokens, -1, ()))
        left, _, others = open_.pop(at) if at < len(open_) else (room, 0, ())
        insort(open_, (left - tokens, number, others + group))
    return full + [(room - left, group) for left, _, group in open_]


def _fewest(tree: Tree, leaves: Sequence[int], budget: int) -> list[Group]:
    """Exact: of every set of leaves the best split, from the best split of what remains beside the group of its first leaf."""
    count = len(leaves)
    cost = _costs(tree, leaves)
    best: list[tuple[int, int]] = [(0, 0)] * (1 << count)
    chosen = [0] * (1 << count)
    for members in range(1, 1 << count):
        first = members & -members
        others = part = members ^ first
        found: tuple[int, int] | None = None
        while True:
            group = part | first
            if cost[group] <= budget or group == first:
                tokens, groups = best[members ^ group]
                if found is None or (tokens + cost[group], groups + 1) <= found:
                    found, chosen[members] = (tokens + cost[group], groups + 1), group
            if not part:
                break
            part = (part - 1) & others
        assert found is not None
        best[members] = found
    return _taken(leaves, chosen)


def _costs(tree: Tree, leaves: Sequence[int]) -> list[int]:
    """Tokens of every set of leaves, by its bits: the first leaf adds what the others' paths do not have of its own."""
    shared = [[_shared(tree, a, b) for b in leaves] for a in leaves]
    cost = [0] * (1 << len(leaves))
    for members in range(1, len(cost)):
        first = (members & -members).bit_length() - 1
        rest = members & (members - 1)
        common = max((shared[first][i] for i in range(first + 1, len(leaves)) if rest >> i & 1), default=0)
        cost[members] = cost[rest] + tree.to[leaves[first]] - common
    return cost


def _shared(tree: Tree, one: int, other: int) -> int:
    """Tokens that two paths have in common."""
    while one != other and one >= 0 and other >= 0:
        if one > other:
            one = tree.parents[one]
        else:
            other = tree.parents[other]
    return tree.to[one] if one == other >= 0 else 0


def _taken(leaves: Sequence[int], chosen: list[int]) -> list[Group]:
    groups: list[Group] = []
    members = (1 << len(leaves)) - 1
    while members:
        group = chosen[members]
        groups.append(tuple(leaf for i, leaf in enumerate(leaves) if group >> i & 1))
        members ^= group
    return groups

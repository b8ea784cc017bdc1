"""Bounded, deduplicated selection (method.md, 4): which root-to-leaf paths of an execution are trained on.

From the highest class of leaves that still has unmasked trainable tokens draw a leaf with probability proportional to
its unmasked tokens; mask its whole path; repeat until nothing is left or j_max trajectories are taken. So a shared
prefix is trained once.

The draw is a hash of the execution's id and the number of the draw: the same tree gives the same selection everywhere.
A node whose role is not trained (side, abandoned) gives no leaf; where such a node follows the agent's own call, that
call is the leaf.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from gyre_engine.events.calls import Role, TreeNode
from gyre_engine.events.training import LeftOut, SelectedTrajectory
from gyre_engine.trees.segments import Node, Segments, end_of, leaves_of, places, segments_of

PAPER_ORDER = (Role.MAIN, Role.MAIN_SUMMARY, Role.SUB_AGENT, Role.SUB_AGENT_SUMMARY)
"""Classes in falling priority."""


@dataclass(frozen=True, slots=True)
class SelectionSettings:
    """j_max: trajectories trained an execution (>= 1); train_roles: the classes that train, in falling priority."""

    j_max: int = 5
    train_roles: tuple[Role, ...] = PAPER_ORDER

    def __post_init__(self) -> None:
        if self.j_max < 1:
            raise ValueError(f"selection.j_max is {self.j_max}; at least one trajectory must be taken")
        if len(set(self.train_roles)) != len(self.train_roles):
            raise ValueError(f"selection.roles names a role twice: {', '.join(self.train_roles)}")


@dataclass(frozen=True, slots=True)
class TrainedRange:
    """Output tokens [start, stop) of one node, counted from its first sampled token."""

    node: str
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Odds:
    """A draw: the leaf's unmasked tokens, those of all leaves that it was drawn from (all of its class), and how many they were."""

    weight: int
    total: int
    leaves: int


@dataclass(frozen=True, slots=True)
class Selection:
    """What one execution gives to training.

    trajectories:    in the order drawn, with the tokens that each adds
    odds:            per trajectory how it was drawn
    ranges:          per trajectory the tokens that it adds; no token stands twice
    left_out:        leaves with sampled tokens that go untrained, and why; with trained_tokens they add up to all
    sampled tokens
    min_version:     oldest weight version of a trained node, -1 where nothing trains
    """

    trajectories: tuple[SelectedTrajectory, ...]
    odds: tuple[Odds, ...]
    ranges: tuple[tuple[TrainedRange, ...], ...]
    left_out: tuple[LeftOut, ...]
    trained_tokens: int
    min_version: int


def select(execution: str, nodes: Sequence[TreeNode], settings: SelectionSettings) -> Selection:
    """The selected trajectories of a closed tree. Pure: depends on the arguments alone."""
    open_leaves = _trained_leaves(nodes, settings.train_roles)
    tree = segments_of(nodes, ends=set(open_leaves))
    unmasked = [segment.trainable for segment in tree.segments]
    chosen: list[SelectedTrajectory] = []
    odds: list[Odds] = []
    ranges: list[tuple[TrainedRange, ...]] = []
    while len(chosen) < settings.j_max:
        weighted = _weighted(nodes, tree, unmasked, open_leaves, settings)
        if not weighted:
            break
        leaf, drawn = _draw(execution, len(chosen), weighted)
        odds.append(drawn)
        ranges.append(_take(nodes, tree, unmasked, leaf))
        tokens = sum(r.stop - r.start for r in ranges[-1])
        chosen.append(SelectedTrajectory(nodes[leaf].node, nodes[leaf].role.value, tokens))
    left_out = _left_out(nodes, tree, unmasked, open_leaves)
    trained = sum(t.trained_tokens for t in chosen)
    return Selection(tuple(chosen), tuple(odds), tuple(ranges), left_out, trained, _oldest(nodes, ranges))


def ranges_of(nodes: Sequence[Node], tree: Segments, leaves: Sequence[int]) -> list[tuple[TrainedRange, ...]]:
    """What each of `leaves`, in this order, adds to training: how a logged selection is followed again."""
    unmasked = [segment.trainable for segment in tree.segments]
    return [_take(nodes, tree, unmasked, leaf) for leaf in leaves]


def _trained_leaves(nodes: Sequence[TreeNode], train_roles: Sequence[Role]) -> list[int]:
    """Leaves of the tree without the branches that do not train."""
    place = places(nodes)
    alive = [False] * len(nodes)
    extended = [False] * len(nodes)
    passed = [False] * len(nodes)
    """A path that trains goes into the node's own tokens, though it may leave them before their end."""
    leaves = []
    for index in range(len(nodes) - 1, -1, -1):
        node = nodes[index]
        own = node.new_input_tokens + node.output_tokens > 0
        alive[index] = own and (extended[index] or node.role in train_roles)
        if alive[index] and not extended[index]:
            leaves.append(index)
        if (alive[index] or passed[index]) and node.parent is not None:
            parent = place[node.parent]
            passed[parent] = True
            extended[parent] |= node.cut == end_of(nodes[parent])
    return leaves[::-1]


def _weighted(
    nodes: Sequence[TreeNode], tree: Segments, unmasked: Sequence[int], leaves: Sequence[int], settings: SelectionSettings
) -> list[tuple[int, int]]:
    """The leaves of the highest class that has an unmasked token, each with how many its path has; nothing where there is none."""
    sums = _path_sums(tree, unmasked)
    for role in settings.train_roles:
        weighted = [(leaf, sums[tree.last[leaf]]) for leaf in leaves if nodes[leaf].role is role]
        if any(weight for _, weight in weighted):
            return weighted
    return []


def _draw(execution: str, number: int, weighted: Sequence[tuple[int, int]]) -> tuple[int, Odds]:
    """The leaf drawn next, in proportion to the weights."""
    total = sum(weight for _, weight in weighted)
    point = _random_below(total, execution, number)
    for leaf, weight in weighted:
        if point < weight:
            return leaf, Odds(weight, total, sum(weight > 0 for _, weight in weighted))
        point -= weight
    raise ValueError("the point lies beyond the sum of all weights")


def _random_below(total: int, execution: str, number: int) -> int:
    """A number in [0, total): 128 hashed bits, so the bias is below total / 2**128."""
    digest = hashlib.blake2b(f"{execution}/{number}".encode(), digest_size=16, person=b"gyre selection")
    return int.from_bytes(digest.digest(), "little") % total


def _path_sums(tree: Segments, values: Sequence[int]) -> list[int]:
    sums: list[int] = []
    for segment, value in zip(tree.segments, values, strict=True):
        sums.append(value + (sums[segment.parent] if segment.parent >= 0 else 0))
    return sums


def _take(nodes: Sequence[Node], tree: Segments, unmasked: list[int], leaf: int) -> tuple[TrainedRange, ...]:
    """Mask the path of `leaf`; the tokens that were unmasked on it, from the root down."""
    found: list[TrainedRange] = []
    for index in reversed(tree.path(leaf)):
        if not unmasked[index]:
            continue
        unmasked[index] = 0
        for run in tree.segments[index].runs:
            node = nodes[run.node]
            first = node.cut + node.new_input_tokens
            if node.trainable and run.stop > first:
                found.append(TrainedRange(node.node, max(run.start, first) - first, run.stop - first))
    return tuple(found)


def _left_out(
    nodes: Sequence[TreeNode], tree: Segments, unmasked: Sequence[int], open_leaves: Sequence[int]
) -> tuple[LeftOut, ...]:
    """Each sampled token that is not trained, by the first leaf whose path holds it: of those that train, then of the others."""
    reached = {segment for leaf in open_leaves for segment in tree.path(leaf)}
    rest = list(unmasked)
    barred = [segment.sampled - segment.trainable for segment in tree.segments]
    found: list[LeftOut] = []
    for leaf in dict.fromkeys([*open_leaves, *leaves_of(nodes)]):
        counts: dict[str, int] = {}
        for index in tree.path(leaf):
            reason = "j-max" if index in reached else _why(nodes, tree, index)
            counts[reason] = counts.get(reason, 0) + rest[index]
            counts["untrainable"] = counts.get("untrainable", 0) + barred[index]
            rest[index] = barred[index] = 0
        found.extend(LeftOut(nodes[leaf].node, reason, tokens) for reason, tokens in sorted(counts.items()) if tokens)
    return tuple(found)


def _why(nodes: Sequence[TreeNode], tree: Segments, segment: int) -> str:
    """The role of the node that ends a segment which no trained path holds."""
    return f"role {nodes[tree.segments[segment].runs[-1].node].role.value}"


def _oldest(nodes: Sequence[TreeNode], ranges: Sequence[Sequence[TrainedRange]]) -> int:
    trained = {item.node for path in ranges for item in path}
    return min((node.min_version for node in nodes if node.node in trained), default=-1)

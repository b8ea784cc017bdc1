"""What a decided group's executions sampled, delivered and earned: admission's word, and the closed trees that it was derived from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from gyre_engine.events.calls import TreeClosed
from gyre_engine.events.training import GroupAdmitted
from gyre_engine.trees.segments import end_of

DISCARDED, FAILED = "discarded", "evaluation-failed"


@dataclass(frozen=True, slots=True)
class TreeCounts:
    """A closed tree without its structure. ends: a node -> tokens of its path from the root; partition, offset: where it stands."""

    sampled: int
    delivered: int
    ends: Mapping[str, int]
    partition: int
    offset: int

    @classmethod
    def of(cls, event: TreeClosed, partition: int, offset: int) -> TreeCounts:
        ends = {node.node: end_of(node) for node in event.nodes}
        return cls(event.sampled_tokens, event.tree_tokens, ends, partition, offset)


@dataclass(frozen=True, slots=True)
class Decision:
    """A group's admission with what a report needs of it; offset: where it stands on `trajectories`."""

    id: str
    offset: int
    reason: str
    """Empty where the group trains."""
    rewards: tuple[float, ...]
    trained_executions: int
    left_out: Mapping[str, int]
    """Attempts that do not count, by the head of their reason."""
    leaves: Mapping[str, tuple[str, ...]]
    """The selected leaves of each execution that counts or had sampled something by admission's word. What an attempt sampled whose
    tree closes later is not waited for: of a broken one it may never close."""

    @classmethod
    def of(cls, event: GroupAdmitted, id: str, offset: int) -> Decision:
        counting = {e.execution: tuple(t.leaf for t in e.trajectories) for e in event.executions}
        return cls(
            id=id,
            offset=offset,
            reason="" if event.trains else event.reason,
            rewards=tuple(e.reward for e in event.executions),
            trained_executions=sum(event.trains and e.trained_tokens > 0 for e in event.executions),
            left_out=Counter(left.reason.partition(":")[0] for left in event.left_out),
            leaves=counting | {left.what: () for left in event.left_out if left.tokens},
        )


@dataclass(frozen=True, slots=True)
class GroupTokens:
    """Tokens of a group's executions. path: of the selected trajectories, each whole; first: its trees' lowest offset by partition."""

    sampled: int
    delivered: int
    path: int
    first: Mapping[int, int]


def group_tokens(decision: Decision, trees: Mapping[str, TreeCounts]) -> GroupTokens | None:
    """Of the executions that `decision` speaks of; None while a tree of theirs is missing. A group that does not train has no path."""
    if not decision.leaves.keys() <= trees.keys():
        return None
    wanted = {execution: trees[execution] for execution in decision.leaves}
    paths = (trees[execution].ends[leaf] for execution, leaves in decision.leaves.items() for leaf in leaves)
    first: dict[int, int] = {}
    for tree in wanted.values():
        first[tree.partition] = min(tree.offset, first.get(tree.partition, tree.offset))
    return GroupTokens(
        sampled=sum(tree.sampled for tree in wanted.values()),
        delivered=sum(tree.delivered for tree in wanted.values()),
        path=0 if decision.reason else sum(paths),
        first=first,
    )

"""A tree as branches: runs of calls of one role in which each goes on from the very end of the one before. For those who look."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gyre_engine.events.calls import Role, TreeNode
from gyre_engine.trees.segments import end_of, places


@dataclass(frozen=True, slots=True)
class Branch:
    """calls: nodes in order. parent: the branch that its first call hangs on, -1 for a root."""

    calls: tuple[TreeNode, ...]
    parent: int

    @property
    def role(self) -> Role:
        return self.calls[0].role


def branches_of(nodes: Sequence[TreeNode]) -> tuple[Branch, ...]:
    """The branches, in the order of their first calls; every node is in one. The first call that goes on from a call's end, in
    its role, goes on in its branch."""
    place = places(nodes)
    branch_of: list[int] = []
    calls: list[list[TreeNode]] = []
    parents: list[int] = []
    for node in nodes:
        above = -1 if node.parent is None else branch_of[place[node.parent]]
        if above >= 0 and _goes_on(calls[above][-1], node):
            branch_of.append(above)
            calls[above].append(node)
            continue
        branch_of.append(len(calls))
        calls.append([node])
        parents.append(above)
    return tuple(Branch(tuple(found), parent) for found, parent in zip(calls, parents, strict=True))


def _goes_on(last: TreeNode, node: TreeNode) -> bool:
    return (node.parent, node.cut, node.role) == (last.node, end_of(last), last.role)

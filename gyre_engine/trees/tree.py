"""The trajectory tree of one execution (method.md, 4): a fold over its model calls, one node a call.

A node's own delta is its new input and its output; it hangs at `cut` tokens from the root, inside or at the end of its
parent's delta. So a child may branch in the middle of an output, and a shared prefix stands once. Adding a call costs
the same whatever the history is.
"""

from __future__ import annotations

from gyre_engine.events.calls import ExecutionClosed, NodeGrown, ProxyOwns, TreeClosed, TreeNode
from gyre_engine.trees.facts import CallFacts
from gyre_engine.trees.roles import infer_roles


class TreeError(ValueError):
    """A call does not fit the tree of its execution; the text names both. The execution is quarantined."""


class TrajectoryTree:
    """The calls of one execution in the order of their records. Equal trees have equal calls, epochs and counts."""

    __slots__ = ("_place", "calls", "epoch", "execution", "sampled")

    def __init__(self, execution: str) -> None:
        self.execution = execution
        self.calls: list[CallFacts] = []
        self.epoch = 0
        self.sampled = 0
        self._place: dict[str, int] = {}

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, TrajectoryTree):
            return NotImplemented
        mine = (self.execution, self.epoch, self.sampled, self.calls)
        return mine == (other.execution, other.epoch, other.sampled, other.calls)

    __hash__ = None  # type: ignore[assignment]

    def own(self, owns: ProxyOwns) -> None:
        """A proxy takes over: records of lower epochs no longer count (log-rules, 9)."""
        self.epoch = max(self.epoch, owns.owner_epoch)

    def add(self, call: CallFacts) -> bool:
        """Whether `call` took its place; not so for a stale owner's record, or one that is there already. Raises TreeError."""
        if call.owner_epoch < self.epoch or call.call in self._place:
            return False
        self.epoch = call.owner_epoch
        self.sampled += call.output_tokens + call.discarded_tokens
        self._check(call)
        self._place[call.call] = len(self.calls)
        self.calls.append(call)
        return True

    def close(self, closed: ExecutionClosed) -> TreeClosed | None:
        """The closed tree with the roles of its nodes; None for a stale owner's closing. Raises TreeError where calls
        are missing.
        """
        if closed.owner_epoch < self.epoch:
            return None
        last = self.calls[-1].call if self.calls else None
        if (closed.calls, closed.last_call) != (len(self.calls), last):
            raise TreeError(
                f"execution {self.execution} was closed after {closed.calls} calls, the last {closed.last_call}; "
                f"the log holds {len(self.calls)}, the last {last}"
            )
        return _closed(self)

    def position(self, call: str) -> int | None:
        """The call's place among the calls, None where it is not in the tree."""
        return self._place.get(call)

    def _check(self, call: CallFacts) -> None:
        name = f"call {call.call} of execution {self.execution}"
        if call.parent is None:
            if call.cut != 0 or call.new_input_tokens == 0:
                raise TreeError(f"{name} is a root with a prefix of {call.cut} and a prompt of {call.new_input_tokens} tokens")
            return
        place = self._place.get(call.parent)
        if place is None:
            raise TreeError(f"{name} hangs on {call.parent}, which is not in the tree")
        parent = self.calls[place]
        if not parent.cut < call.cut <= parent.end:
            raise TreeError(f"{name} is cut at {call.cut}, outside its parent's tokens {parent.cut} to {parent.end}")


def grown(call: CallFacts) -> NodeGrown:
    """The event of a call that took its place."""
    return NodeGrown(
        execution=call.execution,
        node=call.call,
        parent=call.parent,
        number=call.number,
        cut=call.cut,
        new_input_tokens=call.new_input_tokens,
        output_tokens=call.output_tokens,
        trainable=call.trainable,
        shape=call.shape,
        tools=call.tools,
        continuity=call.continuity,
        min_version=call.min_version,
        max_version=call.max_version,
    )


def _closed(tree: TrajectoryTree) -> TreeClosed:
    nodes = tuple(
        TreeNode(c.call, c.parent, c.cut, c.new_input_tokens, c.output_tokens, c.trainable, role, c.min_version)
        for c, role in zip(tree.calls, infer_roles(tree.calls), strict=True)
    )
    standing = sum(node.output_tokens for node in nodes)
    return TreeClosed(
        execution=tree.execution,
        nodes=nodes,
        sampled_tokens=tree.sampled,
        tree_tokens=standing,
        delivered=standing / tree.sampled if tree.sampled else 1.0,
    )

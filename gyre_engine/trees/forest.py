"""All executions of a run: the fold over `model-calls` that the live stream and the replay share."""

from __future__ import annotations

from gyre_engine.events.calls import ExecutionClosed, ProxyOwns, Quarantined, TreeClosed
from gyre_engine.trees.facts import CallFacts, Fact
from gyre_engine.trees.tree import TrajectoryTree, TreeError


class Forest:
    """The open trees of a run. Closed and quarantined executions keep only their name, so late records change
    nothing.
    """

    def __init__(self) -> None:
        self.trees: dict[str, TrajectoryTree] = {}
        self.ended: set[str] = set()

    def observe(self, fact: Fact) -> CallFacts | TreeClosed | Quarantined | None:
        """What follows from the next record of an execution, in the order of the log: a call that took its place, or an event."""
        if fact.execution in self.ended:
            return None
        tree = self.trees.get(fact.execution)
        if tree is None:
            tree = self.trees[fact.execution] = TrajectoryTree(fact.execution)
        try:
            return self._apply(tree, fact)
        except TreeError as error:
            return self.quarantine(fact.execution, str(error))

    def quarantine(self, execution: str, reason: str) -> Quarantined | None:
        """The execution leaves the forest; None where it had left before (log-rules, 16)."""
        if execution in self.ended:
            return None
        self._end(execution)
        return Quarantined(execution=execution, reason=reason)

    def _apply(self, tree: TrajectoryTree, fact: Fact) -> CallFacts | TreeClosed | None:
        if isinstance(fact, ProxyOwns):
            tree.own(fact)
            return None
        if not isinstance(fact, ExecutionClosed):
            return fact if tree.add(fact) else None
        closed = tree.close(fact)
        if closed is not None:
            self._end(fact.execution)
        return closed

    def _end(self, execution: str) -> None:
        self.trees.pop(execution, None)
        self.ended.add(execution)

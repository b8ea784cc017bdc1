"""Trajectory trees: every model call takes its place in the tree of its execution.

reads     model-calls (by execution); trees at a start (what is decided already)
writes    trees (by execution): a node a call, the whole tree with roles when the execution is closed, quarantines; dead-letters
promises  the same tree whatever is delivered twice; an execution with a record that cannot be read or placed is quarantined, by
          an event; only counts pass through here, never token ids

State is the open trees of the run, in memory, read again from the log at a start.
"""

from __future__ import annotations

from collections.abc import Sequence

from gyre_engine.events import Event, derived_id
from gyre_engine.events.calls import NodeGrown, Quarantined, TreeClosed
from gyre_engine.log.port import Raw
from gyre_engine.trees import facts
from gyre_engine.trees.forest import Forest
from gyre_engine.trees.tree import grown
from streams.derivation import Derived, dead_letter, execution_of, quarantine

VERSION = 1


class TrajectoryTrees:
    """The derivation. `config_hash` is part of the ids of what it derives."""

    name = "trajectory-trees"
    sources: tuple[str, ...] = ("model-calls",)
    decisive: tuple[type[Event], ...] = (TreeClosed, Quarantined)
    whole = False

    def __init__(self, config_hash: str = "") -> None:
        self.config_hash = config_hash
        self.forest = Forest()

    def begin(self, event: Event) -> None:
        """Nothing: the trees follow from the calls alone."""

    def observe(self, raw: Raw) -> Sequence[Derived]:
        """The node, the closed tree, or the quarantine that follows."""
        found = facts.of_bytes(raw.value)
        event = self.forest.observe(found.fact)
        if event is None:
            return ()
        if isinstance(event, Quarantined):
            return dead_letter(raw, self.name, event.reason), quarantine(raw, event, self.config_hash)
        return (self._derived(event if isinstance(event, TreeClosed) else grown(event), found),)

    def reject(self, raw: Raw, reason: str) -> Sequence[Derived]:
        """A dead letter, and the quarantine of the execution that keys the record."""
        letter = dead_letter(raw, self.name, reason)
        execution = execution_of(raw)
        event = self.forest.quarantine(execution, reason) if execution else None
        return (letter,) if event is None else (letter, quarantine(raw, event, self.config_hash))

    def _derived(self, event: NodeGrown | TreeClosed, found: facts.RecordedFact) -> Derived:
        id = derived_id((found.id,), event.TYPE, VERSION, self.config_hash)
        return Derived(event, id, found.id, found.at)

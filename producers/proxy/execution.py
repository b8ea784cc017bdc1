"""One execution as the proxy knows it.

Memory of an execution, all of it dropped when it is closed: its paths (4 bytes a unique token, ~400 bytes a call), its
answers and tool calls (~200 bytes each), and the ids of tool calls whose results were not seen yet.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from gyre_engine.events.calls import ModelCall
from gyre_engine.events.codec import Int32
from gyre_engine.trees.conversation import Conversation
from gyre_engine.trees.path import Paths, Stretch


@dataclass(slots=True)
class Execution:
    """The state of one execution."""

    id: str
    epoch: int
    thinking: tuple[int, ...] = ()
    """The ids of the markers around thinking."""
    paths: Paths = field(default_factory=Paths)
    conversation: Conversation = field(default_factory=Conversation)
    calls: int = 0
    last_call: str | None = None
    tokens: int = 0
    held_us: int = 0
    errors: int = 0
    """Answers of 5xx; those given before a restart of the proxy are not known any more."""
    thinks_at: dict[str, int] = field(default_factory=dict)
    """Where the first thinking stands on a call's path, of calls that have any."""
    unanswered_tools: set[str] = field(default_factory=set)

    def learn(self, call: ModelCall) -> None:
        """Take up a record that the log has acknowledged."""
        delta = np.concatenate([call.new_input_ids, call.output_ids]).astype(np.int32, copy=False)
        inputs = len(call.new_input_ids)
        self.paths.add(Stretch(call.call, call.parent, call.prefix_len, call.prefix_hash, delta, inputs))
        self._note_thinking(call, delta)
        self.calls, self.last_call = call.number + 1, call.call
        self.tokens += len(call.output_ids)
        self.held_us += call.queued_us

    def answered(self, call: ModelCall, wire_ids: Sequence[str]) -> None:
        """A record's answer is there to go on from, and so are its tool calls. Nothing goes on from a record without a chain."""
        if call.chain:
            self.conversation.learn(call.call, call.chain, wire_ids)
            self.unanswered_tools.update(wire_ids)

    def _note_thinking(self, call: ModelCall, delta: Int32) -> None:
        before = self.thinks_at.get(call.parent, call.prefix_len) if call.parent else call.prefix_len
        marks = np.flatnonzero(np.isin(delta, self.thinking))
        if before < call.prefix_len:
            self.thinks_at[call.call] = before
        elif len(marks):
            self.thinks_at[call.call] = call.prefix_len + int(marks[0])

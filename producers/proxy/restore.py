"""What a proxy reads back when it starts: the executions that are not closed.

reads     model-calls
writes    model-calls (proxy-owns)
promises  a state rebuilt here continues any history as the one before would have: ids come from the records, chains from their
          `chain`, tool-call ids from the calls' ids; a predecessor that still writes is cut off by a higher epoch before anything
          is served
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from gyre_engine.events import Recorded
from gyre_engine.events.calls import ExecutionClosed, ModelCall, ProxyOwns
from gyre_engine.log.port import Log, Offsets
from gyre_engine.trees.owned import OwnedCalls
from producers.proxy.execution import Execution
from producers.proxy.prompt import tail_of
from producers.proxy.rendering import Rendering
from producers.proxy.service import Closed

ROUNDS = 5


class StillOwned(RuntimeError):
    """Another proxy keeps opening executions while this one takes over; the text says what to do."""


@dataclass(slots=True)
class Restored:
    """The executions of earlier proxies: open ones by their records, closed ones by their counts."""

    open: OwnedCalls = field(default_factory=OwnedCalls)
    closed: dict[str, Closed] = field(default_factory=dict)

    def observe(self, records: Iterable[Recorded]) -> None:
        """Fold in records of model-calls, in the order of each execution; those of superseded epochs do not count."""
        for event in (record.event for record in records):
            if self.open.see(event) and isinstance(event, ExecutionClosed):
                tokens = sum(len(call.output_ids) for call in self.open.of(event.execution))
                self.closed[event.execution] = Closed(event.held_us, event.calls, tokens)
                self.open.forget(event.execution)


def take_over(log: Log, proxy: str) -> Restored:
    """Read the past, own what is open, and read on to where that stands (log-rules, 9)."""
    restored, owned = Restored(), dict[str, int]()
    read: Offsets = {}
    for _ in range(ROUNDS):
        ends = log.ends(["model-calls"])
        restored.observe(log.read("model-calls", start=read, end=ends))
        read = ends
        strangers = {name: epoch for name, epoch in restored.open.epochs.items() if owned.get(name, -1) < epoch}
        if not strangers:
            return restored
        owned |= {name: epoch + 1 for name, epoch in strangers.items()}
        log.append_all([ProxyOwns(execution=name, owner_epoch=owned[name], proxy=proxy) for name in strangers])
    raise StillOwned("another proxy of this run keeps taking executions over: stop it, then start this one again")


def rebuild(name: str, past: OwnedCalls, rendering: Rendering) -> Execution:
    """An open execution's state, as its last owner had it."""
    execution = Execution(name, past.epochs[name], rendering.thinking)
    for call in past.of(name):
        execution.learn(call)
        if call.chain:
            execution.answered(call, _wire_ids(execution, call, rendering))
    return execution


def _wire_ids(execution: Execution, call: ModelCall, rendering: Rendering) -> list[str]:
    tail = tail_of(execution, execution.paths.stretches[call.call], rendering)
    parsed = rendering.parse(tail, call.output_ids.tolist(), [])
    return [asked.id for asked in parsed.tool_calls(call.call)]

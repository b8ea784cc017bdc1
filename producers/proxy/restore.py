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
from gyre_engine.trees.conversation import wire_id
from producers.proxy.execution import Execution, tail_of
from producers.proxy.rendering import Rendering
from producers.proxy.service import Closed

ROUNDS = 5


class StillOwned(RuntimeError):
    """Another proxy keeps opening executions while this one takes over; the text says what to do."""


@dataclass(slots=True)
class _Past:
    """The records that count of one execution, and the highest epoch among its owners."""

    epoch: int = 0
    calls: dict[str, ModelCall] = field(default_factory=dict)


@dataclass(slots=True)
class Restored:
    """The executions of earlier proxies: open ones by their records, closed ones by their counts."""

    open: dict[str, _Past] = field(default_factory=dict)
    closed: dict[str, Closed] = field(default_factory=dict)

    def observe(self, records: Iterable[Recorded]) -> None:
        """Fold in records of model-calls, in the order of each execution; those of superseded epochs do not count."""
        for record in records:
            match record.event:
                case ProxyOwns() as owns:
                    past = self.open.setdefault(owns.execution, _Past())
                    past.epoch = max(past.epoch, owns.owner_epoch)
                case ModelCall() as call:
                    past = self.open.setdefault(call.execution, _Past())
                    if call.owner_epoch >= past.epoch:
                        past.calls.setdefault(call.call, call)
                case ExecutionClosed() as closed if closed.owner_epoch >= self.open.get(closed.execution, _Past()).epoch:
                    past = self.open.pop(closed.execution, _Past())
                    tokens = sum(len(call.output_ids) for call in past.calls.values())
                    self.closed[closed.execution] = Closed(closed.held_us, closed.calls, tokens)
                case _:
                    pass


def take_over(log: Log, proxy: str) -> Restored:
    """Read the past, own what is open, and read on to where that stands (log-rules, 9)."""
    restored, owned = Restored(), dict[str, int]()
    read: Offsets = {}
    for _ in range(ROUNDS):
        ends = log.ends(["model-calls"])
        restored.observe(log.read("model-calls", start=read, end=ends))
        read = ends
        strangers = {name: past for name, past in restored.open.items() if owned.get(name, 0) < past.epoch or name not in owned}
        if not strangers:
            return restored
        owned |= {name: past.epoch + 1 for name, past in strangers.items()}
        log.append_all([ProxyOwns(execution=name, owner_epoch=owned[name], proxy=proxy) for name in strangers])
    raise StillOwned("another proxy of this run keeps taking executions over: stop it, then start this one again")


def rebuild(name: str, past: _Past, rendering: Rendering) -> Execution:
    """An open execution's state, as its last owner had it."""
    execution = Execution(name, past.epoch, rendering.thinking)
    for call in past.calls.values():
        execution.learn(call, [])
        if call.chain:
            wire_ids = _wire_ids(execution, call, rendering)
            execution.conversation.learn(call.call, call.chain, wire_ids)
            execution.unanswered_tools.update(wire_ids)
    return execution


def _wire_ids(execution: Execution, call: ModelCall, rendering: Rendering) -> list[str]:
    tail = tail_of(execution, execution.paths.stretches[call.call], rendering)
    parsed = rendering.parse(tail, call.output_ids.tolist(), [])
    return [wire_id(call.call, index) for index in range(len(parsed.calls))]

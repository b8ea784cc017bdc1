"""The model calls that count of each execution: those of its ruling owner, in the order of the log, each once (log-rules, 9).

The fold that the trainer, the replay and a proxy that takes over share.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from gyre_engine.events import Event
from gyre_engine.events.calls import ExecutionClosed, ModelCall, ProxyOwns


@dataclass(slots=True)
class OwnedCalls:
    """State: the calls and the highest owner epoch of each execution that is not forgotten."""

    epochs: dict[str, int] = field(default_factory=dict)
    _calls: dict[str, dict[str, ModelCall]] = field(default_factory=dict)

    def see(self, event: Event) -> bool:
        """Whether an event of `model-calls` counts: a later record of a lower epoch is a deposed proxy's."""
        match event:
            case ProxyOwns() | ModelCall() | ExecutionClosed():
                if event.owner_epoch < self.epochs.get(event.execution, 0):
                    return False
                self.epochs[event.execution] = event.owner_epoch
            case _:
                return False
        if isinstance(event, ModelCall):
            self._calls.setdefault(event.execution, {}).setdefault(event.call, event)
        return True

    def of(self, execution: str) -> list[ModelCall]:
        """The execution's calls so far."""
        return list(self._calls.get(execution, {}).values())

    def holds(self, execution: str, calls: Iterable[str]) -> bool:
        """Whether all these calls of the execution were seen."""
        return set(calls) <= self._calls.get(execution, {}).keys()

    def forget(self, execution: str) -> None:
        """Its calls are not needed any more."""
        self._calls.pop(execution, None)
        self.epochs.pop(execution, None)

"""How many tokens the run has sampled, by the records of its model calls: a short run's engines may never report theirs, and an
engine that is started again counts from 0. What counts is what the trees hold (log-rules, 9); memory: a line an execution."""

from __future__ import annotations

from dataclasses import dataclass, field

from gyre_engine.events.calls import ModelCall, ProxyOwns


@dataclass(slots=True)
class Sampled:
    """The fold. A later record of a lower epoch is a deposed proxy's; one whose number was seen stands twice."""

    tokens: int = 0
    _at: dict[str, tuple[int, int]] = field(default_factory=dict)
    """execution -> (epoch of its owner, number of its next call)"""

    def see(self, event: ModelCall | ProxyOwns) -> None:
        """Take in a record, or who may write the next ones."""
        epoch, number = self._at.get(event.execution, (0, 0))
        if event.owner_epoch < epoch:
            return
        if isinstance(event, ModelCall) and event.number >= number:
            self.tokens += len(event.output_ids) + event.discarded_tokens
            number = event.number + 1
        self._at[event.execution] = (event.owner_epoch, number)

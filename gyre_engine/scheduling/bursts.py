"""Which burst was let begin, and which cells train since before: a fold of `commands`, for the scheduler and the core.

promises  commands of an epoch that does not rule count for nothing (log-rules, 8), nor does one that comes again; of no other topic,
          so no interleaving matters
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from gyre_engine.events import Event
from gyre_engine.events.bursts import BeginBurst
from gyre_engine.events.cells import CellRole, SchedulerElected, SwitchRole


@dataclass(frozen=True, slots=True)
class Bursts:
    """begun: committed steps before the burst that was let begin last, -1 for none; training: cells that were told to train;
    held_over: those of them that had been told so before that burst began; number: of the last command."""

    epoch: int = 0
    number: int = 0
    begun: int = -1
    training: frozenset[str] = frozenset()
    held_over: frozenset[str] = frozenset()


def observe(bursts: Bursts, event: Event) -> Bursts:
    """After an event of `commands`; others change nothing."""
    match event:
        case SchedulerElected() if event.epoch > bursts.epoch:
            return replace(bursts, epoch=event.epoch)
        case SwitchRole() if _follows(event, bursts):
            rest = bursts.training - {event.cell}
            training = rest | {event.cell} if event.to is CellRole.TRAINING else rest
            return replace(bursts, number=event.number, training=training, held_over=bursts.held_over - {event.cell})
        case BeginBurst() if _follows(event, bursts):
            return replace(bursts, number=event.number, begun=event.step, held_over=bursts.training)
        case _:
            return bursts


def _follows(command: SwitchRole | BeginBurst, bursts: Bursts) -> bool:
    """Numbers rise from scheduler to scheduler."""
    return command.epoch >= bursts.epoch and command.number > bursts.number

"""The committed steps of a run as the ledger tells them: what a recovery and a replay compute again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from gyre_engine.batching import PackedMicroStep
from gyre_engine.events import Event
from gyre_engine.events.training import Checkpointed, StepCommitted, StepOpened
from gyre_engine.losses.config import LossConfig
from gyre_engine.training.ledger.fold import Ledger, apply, concluded
from gyre_engine.training.ledger.merge import ReplayDiverged, SealedWork, recompute, update
from gyre_engine.training.replica import Hyper, Optimizer, TrainingReplica


@dataclass(frozen=True, slots=True)
class CommittedStep:
    """A final step: its opening, its commit, and the members' work in merge order."""

    opened: StepOpened
    committed: StepCommitted
    works: tuple[SealedWork, ...]


@dataclass(slots=True)
class History:
    """A fold that keeps the committed steps and the checkpoints beside the ledger itself."""

    ledger: Ledger = field(default_factory=Ledger)
    steps: list[CommittedStep] = field(default_factory=list)
    checkpoints: list[Checkpointed] = field(default_factory=list)

    def see(self, event: Event) -> None:
        before = self.ledger
        self.ledger = apply(before, event)
        if isinstance(event, StepCommitted) and (step := concluded(before, self.ledger)) is not None:
            seals = [step.members[cell].sealed for cell, _ in event.merge_order]
            works = tuple(SealedWork(s.cell, s.micro_steps, s.buffer_hash) for s in seals if s is not None)
            self.steps.append(CommittedStep(step.opened, event, works))
        elif isinstance(event, Checkpointed):
            self.checkpoints.append(event)


def train_again(
    step: CommittedStep,
    replica: TrainingReplica,
    optimizer: Optimizer,
    packs: Mapping[str, PackedMicroStep],
    loss: LossConfig,
    hyper: Hyper,
    *,
    check_buffers: bool = True,
) -> str:
    """Make a committed step once more; the hash of the weights after it.

    Raises ReplayDiverged where a micro-step is missing on the log or (check_buffers) a member's gradients differ.
    """
    number = step.committed.step

    def pack_of(name: str) -> PackedMicroStep:
        if name not in packs:
            raise ReplayDiverged(f"step {number}: micro-step {name} is not on the log")
        return packs[name]

    gradient = recompute(replica, step.works, pack_of, loss, check=check_buffers, step=number)
    update(optimizer, gradient, step.opened.divisor, hyper)
    replica.version = number
    return replica.weights_hash()

"""How a core comes up again with the weights of the last committed step.

reads     training; micro-steps, those of a step at a time
promises  recovery is the newest checkpoint that can be read plus the committed steps after it, made again and hash-checked
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from consumers.trainer.settings import TrainerSettings
from gyre_engine.batching.step_inputs import packed, probe
from gyre_engine.events.training import Checkpointed
from gyre_engine.log import Log
from gyre_engine.log.micro_steps import LoggedMicroSteps
from gyre_engine.training import checkpoint
from gyre_engine.training.checkpoint import Checkpoint, Origin
from gyre_engine.training.ledger.history import CommittedStep, History, train_again
from gyre_engine.training.ledger.merge import ReplayDiverged
from gyre_engine.training.replica import Optimizer, TrainingReplica


@dataclass(frozen=True, slots=True)
class Recovered:
    """Where the core stands again.

    checkpointed: the version was read from a checkpoint of its own
    position:     offset of that step's commit on the ledger, -1 for the initial weights
    probe:        ids of a path that the step trained on (`step_inputs.probe`)
    """

    version: int
    checkpointed: bool
    position: int
    probe: list[int]


@dataclass(frozen=True, slots=True)
class PassedOver:
    """A checkpoint that the ledger names and that cannot be used, and what is wrong with it."""

    step: int
    reason: str


def recover(
    settings: TrainerSettings, log: Log, replica: TrainingReplica, optimizer: Optimizer, origin: Origin | None = None,
    through: int | None = None, there: Callable[[list[int]], None] = lambda _: None,
    tell: Callable[[PassedOver, int], None] = lambda _passed, _instead: None,
) -> Recovered:  # fmt: skip
    """Bring replica and optimizer to the last committed step. Raises ReplayDiverged where hashes differ.

    origin:  what a checkpoint must belong to; of something else it raises CheckpointError, before any weights change
    through: a version to pass on the way; `there` is called with its probe while the replica holds it
    tell:    hears of each checkpoint that cannot be used, with the step of the one that is taken instead
    """
    history, position = _told(log)
    known = [event for event in history.checkpoints if through is None or event.step <= through]
    stored, passed = _newest(history, known, settings.checkpoint_url)
    for each in passed[: settings.checkpoint_keep or None]:  # those before were removed, or were to be
        tell(each, stored.step if stored else 0)
    start, version = _start(stored, settings, replica, optimizer, origin or Origin()), history.ledger.step
    logged = LoggedMicroSteps(log)
    ids = _probe_of(start, history, logged) if start in (through, version) else []
    if start == through:
        there(ids)
    for step in history.steps[start:]:
        ids = _made(step, logged, settings, replica, optimizer)
        if step.committed.step == through:
            there(ids)
    return Recovered(version, start == version, position, ids)


def _told(log: Log) -> tuple[History, int]:
    """What the ledger tells, and the offset of the last commit that it took, -1 for none."""
    history, position = History(), -1
    for record in log.read("training"):
        before = history.ledger.committed
        history.see(record.event)
        if history.ledger.committed is not before:
            position = record.offset
    return history, position


def _made(
    step: CommittedStep, logged: LoggedMicroSteps, settings: TrainerSettings, replica: TrainingReplica, optimizer: Optimizer
) -> list[int]:
    """Make this step again; its probe. What it reads is let go with it: only one step's micro-steps are held."""
    events = logged.of(step.opened.micro_steps)
    packs = {name: packed(event) for name, event in events.items()}
    found = train_again(step, replica, optimizer, packs, settings.loss, settings.hyper)
    if found != step.committed.weights_hash:
        raise ReplayDiverged(
            f"recovery made step {step.committed.step} again and got weights {found[:16]}; "
            f"the ledger has {step.committed.weights_hash[:16]}"
        )
    return probe(list(events.values()))


def _probe_of(version: int, history: History, logged: LoggedMicroSteps) -> list[int]:
    """The probe that the core took which committed this version."""
    return probe(list(logged.of(history.steps[version - 1].opened.micro_steps).values())) if version else []


def _start(
    stored: Checkpoint | None, settings: TrainerSettings, replica: TrainingReplica, optimizer: Optimizer, origin: Origin
) -> int:
    """Load this checkpoint, or the initial weights; their step."""
    if stored is None:
        replica.load(Path(settings.model_path), 0)
        return 0
    stored.require(origin)
    replica.load(stored.weights, stored.step)
    optimizer.restore(stored.state)
    if (found := optimizer.state_hash()) != stored.state_hash:
        raise checkpoint.CheckpointError(
            f"the optimizer's state of the checkpoint of step {stored.step} reads as {found[:16]}, it was stored as "
            f"{stored.state_hash[:16]}: move the checkpoint away to recover from an older one"
        )
    return stored.step


def _newest(history: History, known: Sequence[Checkpointed], url: str) -> tuple[Checkpoint | None, list[PassedOver]]:
    """The newest of those that the ledger names and that can be read, and what is wrong with newer ones."""
    committed = {s.committed.step: s.committed.weights_hash for s in history.steps}
    passed: list[PassedOver] = []
    for event in reversed(known):
        if committed.get(event.step) != event.weights_hash:
            continue
        try:
            stored = checkpoint.read(url, event.step)
        except checkpoint.CheckpointError as error:
            passed.append(PassedOver(event.step, str(error).removesuffix(checkpoint.REMEDY)))
            continue
        if stored.weights_hash == event.weights_hash:
            return stored, passed
        passed.append(PassedOver(event.step, f"{url} holds other weights for step {event.step} than the ledger says"))
    return None, passed

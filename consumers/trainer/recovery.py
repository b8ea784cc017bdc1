"""How a core comes up again with the weights of the last committed step.

reads     training, micro-steps
promises  recovery is the newest checkpoint that can be read plus the committed steps after it, made again and hash-checked
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from consumers.trainer.settings import TrainerSettings
from gyre_engine.batching import PackedMicroStep
from gyre_engine.batching.step_inputs import packed, probe
from gyre_engine.events.training import Checkpointed, MicroStep
from gyre_engine.log import Log
from gyre_engine.training import checkpoint
from gyre_engine.training.checkpoint import Checkpoint, Origin
from gyre_engine.training.ledger.history import History, history_of, train_again
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
    records = list(log.read("training"))
    history = history_of(r.event for r in records)
    known = [event for event in history.checkpoints if through is None or event.step <= through]
    stored, passed = _newest(history, known, settings.checkpoint_url)
    for each in passed[: settings.checkpoint_keep or None]:  # those before were removed, or were to be
        tell(each, stored.step if stored else 0)
    start = _start(stored, settings, replica, optimizer, origin or Origin())
    if start == through:
        there(_probe(log, history, start))
    packs = packs_of(log, history.needed_micro_steps(after=start))
    for step in history.steps:
        if step.committed.step <= start:
            continue
        found = train_again(step, replica, optimizer, packs, settings.loss, settings.hyper)
        if found != step.committed.weights_hash:
            raise ReplayDiverged(
                f"recovery made step {step.committed.step} again and got weights {found[:16]}; "
                f"the ledger has {step.committed.weights_hash[:16]}"
            )
        if step.committed.step == through:
            there(_probe(log, history, through))
    last = history.ledger.committed
    position = next((r.offset for r in reversed(records) if r.event is last), -1)
    version = history.ledger.step
    return Recovered(version, start == version, position, _probe(log, history, version))


def _probe(log: Log, history: History, version: int) -> list[int]:
    """The probe that the core took which committed this version."""
    if not version:
        return []
    order = history.steps[version - 1].opened.micro_steps
    found = {e.micro_step: e for e in _micro_steps(log, set(order))}
    return probe([found[name] for name in order if name in found])


def packs_of(log: Log, names: set[str]) -> Mapping[str, PackedMicroStep]:
    """The named micro-steps from the log."""
    return {e.micro_step: packed(e) for e in _micro_steps(log, names)}


def _micro_steps(log: Log, names: set[str]) -> Iterator[MicroStep]:
    if names:
        yield from (e for r in log.read("micro-steps") if isinstance(e := r.event, MicroStep) and e.micro_step in names)


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

"""Replaying a run: the verdict step by step.

reads     training; micro-steps, those of a step at a time; to verify also executions, model-calls, scores, trajectories
writes    nothing but dead-letters, for records that cannot be read
promises  a step is verified only where its micro-steps follow from the model calls and its weights hash to what was committed
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path

from consumers.replay.derive import Sources, check_groups, check_micro_steps
from gyre_engine.admission import AdmissionSettings
from gyre_engine.batching.assemble import AssemblyError
from gyre_engine.batching.microstep import InvalidMicroStep
from gyre_engine.batching.step_inputs import Packing, packed, trained
from gyre_engine.batching.work import InvalidWork
from gyre_engine.events.log import RunStarted
from gyre_engine.events.training import MicroStep
from gyre_engine.experts import BadRouting
from gyre_engine.log import Log
from gyre_engine.log.micro_steps import LoggedMicroSteps
from gyre_engine.losses.config import LossConfig
from gyre_engine.losses.names import LossError
from gyre_engine.training.core_replica import CoreReplica
from gyre_engine.training.fingerprint import differences, fingerprint
from gyre_engine.training.ledger.fold import LedgerBroken
from gyre_engine.training.ledger.history import CommittedStep, History, train_again
from gyre_engine.training.ledger.merge import ReplayDiverged
from gyre_engine.training.mesh import ONE, Mesh
from gyre_engine.training.opening import open_replica
from gyre_engine.training.reference import BorrowedReplica
from gyre_engine.training.replica import Hyper, ReplicaOptions, TrainingError

FAULTS = (ReplayDiverged, AssemblyError, InvalidWork, InvalidMicroStep, BadRouting, LossError, TrainingError)
"""What a step of the log itself can be wrong in: a verdict, not the end of the program."""


@dataclass(frozen=True, slots=True)
class ReplaySettings:
    """`until`: last step to make, 0 for all. `verify`: compare every step with the log."""

    model_path: str
    packing: Packing
    threads: int
    admission: AdmissionSettings
    loss: LossConfig = field(default_factory=LossConfig)
    hyper: Hyper = field(default_factory=Hyper)
    options: ReplicaOptions = field(default_factory=ReplicaOptions)
    mesh: Mesh = ONE
    """That of the run's cells: sums over other ranks round differently."""
    reference: str = ""
    """Folder of the reference policy's weights; empty: none is looked at."""
    verify: bool = True
    until: int = 0


@dataclass(frozen=True, slots=True)
class StepVerdict:
    """What a replayed step gave. `verified` is None where nothing was compared."""

    step: int
    micro_steps: int
    weights_hash: str
    verified: bool | None
    problem: str = ""


def not_comparable(started: RunStarted, settings: ReplaySettings, versions: Mapping[str, str]) -> tuple[str, ...]:
    """Why bit equality cannot be expected here; empty where it must hold. `versions`: of the packages that a run is pinned to."""
    here = fingerprint(settings.threads, settings.options.device)
    return tuple(dict.fromkeys((*differences(started.fingerprint, here), *differences(started.versions, versions))))


def replay(open_log: Callable[[], AbstractContextManager[Log]], settings: ReplaySettings) -> Iterator[StepVerdict]:
    """Train again from the initial weights; a verdict a committed step. Stops after the first that fails. Heavy: imports Megatron.

    open_log: is called once the replica stands, as a replica of several ranks forks, and a log has threads.
    """
    model = Path(settings.model_path)
    with contextlib.closing(open_replica(model, settings.options, settings.mesh)) as replica, open_log() as log:
        history, broken = _history(log)
        steps = [s for s in history.steps if not settings.until or s.committed.step <= settings.until]
        trainer = _Trainer(log, settings, replica, steps)
        for step in steps:
            verdict = trainer.make(step)
            yield verdict
            if verdict.verified is False:
                return
        if broken and len(steps) == len(history.steps):
            yield _failed(history.ledger.step + 1, broken)


def _history(log: Log) -> tuple[History, LedgerBroken | None]:
    """What the ledger tells, as far as it can be followed; what ends it otherwise."""
    history = History()
    try:
        for record in log.read("training"):
            history.see(record.event)
    except LedgerBroken as error:
        return history, error
    return history, None


class _Trainer:
    """A replica, an optimizer, and the log's inputs."""

    def __init__(self, log: Log, settings: ReplaySettings, replica: CoreReplica, steps: Sequence[CommittedStep]) -> None:
        from gyre_engine.training.optimizer.adamw import AdamW

        self._settings, self._replica = settings, replica
        replica.load(Path(settings.model_path), 0)
        self._optimizer = AdamW(replica.parameters, replica.shards())
        self._reference = BorrowedReplica(replica, Path(settings.reference)) if settings.reference else None
        self._logged = LoggedMicroSteps(log)
        self._sources = Sources.read(log) if settings.verify and steps else Sources()

    def make(self, step: CommittedStep) -> StepVerdict:
        number = step.committed.step
        try:
            count, found = self._make(step)
        except FAULTS as error:
            return _failed(number, error)
        if not self._settings.verify:
            return StepVerdict(number, count, found, None)
        same = found == step.committed.weights_hash
        problem = "" if same else f"step {number}: weights {found[:16]}, committed {step.committed.weights_hash[:16]}"
        return StepVerdict(number, count, found, same, problem)

    def _make(self, step: CommittedStep) -> tuple[int, str]:
        """How many micro-steps it has, and the hash of the weights after it."""
        settings, logged = self._settings, self._logged.of(step.opened.micro_steps)
        count = self._derive(step, logged) if settings.verify else len(step.opened.micro_steps)
        packs = {name: packed(event) for name, event in logged.items()}
        found = train_again(
            step, self._replica, self._optimizer, packs, settings.loss, settings.hyper, check_buffers=settings.verify
        )
        return count, found

    def _derive(self, step: CommittedStep, logged: Mapping[str, MicroStep]) -> int:
        s, sources = self._settings, self._sources
        groups = check_groups(step.opened.groups, sources, s.admission, step.committed.step)
        count = check_micro_steps(step, groups, sources.calls, logged, s.packing, self._reference)
        for execution in trained(groups):
            sources.calls.forget(execution.execution)
        return count


def _failed(number: int, error: Exception) -> StepVerdict:
    said = str(error) if isinstance(error, ReplayDiverged) else f"step {number} cannot be made again: {error}"
    return StepVerdict(number, 0, "", False, said)

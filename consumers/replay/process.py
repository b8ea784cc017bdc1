"""Replaying a run: the verdict step by step.

reads     training, micro-steps; to verify also executions, model-calls, scores, trajectories
writes    nothing but dead-letters, for records that cannot be read
promises  a step is verified only where its micro-steps follow from the model calls and its weights hash to what was committed
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from consumers.replay.derive import Sources, check_groups, check_micro_steps
from gyre_engine.admission import AdmissionSettings
from gyre_engine.batching.step_inputs import Packing, packed
from gyre_engine.events.log import RunStarted
from gyre_engine.events.training import MicroStep
from gyre_engine.log import Log
from gyre_engine.losses.config import LossConfig
from gyre_engine.training.fingerprint import differences, fingerprint
from gyre_engine.training.history import CommittedStep, History, history_of, train_again
from gyre_engine.training.merge import ReplayDiverged
from gyre_engine.training.mesh import ONE, Mesh
from gyre_engine.training.opening import open_replica
from gyre_engine.training.reference import BorrowedReplica
from gyre_engine.training.replica import Hyper, ReplicaOptions


@dataclass(frozen=True, slots=True)
class ReplaySettings:
    """`until`: last step to make, 0 for all. `verify`: compare every step with the log."""

    model_path: str
    temperature: float
    packing: Packing
    threads: int
    admission: AdmissionSettings
    loss: LossConfig = field(default_factory=LossConfig)
    hyper: Hyper = field(default_factory=Hyper)
    dtype: str = "float32"
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
    here = fingerprint(settings.threads)
    return tuple(dict.fromkeys((*differences(started.fingerprint, here), *differences(started.versions, versions))))


def replay(log: Log, settings: ReplaySettings) -> Iterator[StepVerdict]:
    """Train again from the initial weights; a verdict a committed step. Stops after the first that fails. Heavy: imports Megatron."""
    history = history_of(r.event for r in log.read("training"))
    steps = [s for s in history.steps if not settings.until or s.committed.step <= settings.until]
    with contextlib.closing(_Trainer(log, settings, history)) as trainer:
        for step in steps:
            verdict = trainer.make(step)
            yield verdict
            if verdict.verified is False:
                return


class _Trainer:
    """A replica, an optimizer, and the log's inputs."""

    def __init__(self, log: Log, settings: ReplaySettings, history: History) -> None:
        from gyre_engine.training.optimizer import AdamW

        model = Path(settings.model_path)
        self._settings = settings
        options = ReplicaOptions(temperature=settings.temperature, dtype=settings.dtype)
        self._replica = open_replica(model, options, settings.mesh)
        self._replica.load(model, 0)
        self._optimizer = AdamW(self._replica.parameters, self._replica.shards())
        self._reference = BorrowedReplica(self._replica, Path(settings.reference)) if settings.reference else None
        names = history.needed_micro_steps()
        events = (r.event for r in log.read("micro-steps"))
        self._logged = {e.micro_step: e for e in events if isinstance(e, MicroStep) and e.micro_step in names}
        self._packs = {name: packed(e) for name, e in self._logged.items()}
        self._sources = Sources.read(log) if settings.verify and names else Sources()

    def close(self) -> None:
        self._replica.close()

    def make(self, step: CommittedStep) -> StepVerdict:
        number = step.committed.step
        try:
            count = self._derive(step) if self._settings.verify else len(step.opened.micro_steps)
            found = train_again(
                step, self._replica, self._optimizer, self._packs, self._settings.loss, self._settings.hyper,
                check_buffers=self._settings.verify,
            )  # fmt: skip
        except ReplayDiverged as error:
            return StepVerdict(number, 0, "", False, str(error))
        if not self._settings.verify:
            return StepVerdict(number, count, found, None)
        same = found == step.committed.weights_hash
        problem = "" if same else f"step {number}: weights {found[:16]}, committed {step.committed.weights_hash[:16]}"
        return StepVerdict(number, count, found, same, problem)

    def _derive(self, step: CommittedStep) -> int:
        s, sources = self._settings, self._sources
        groups = check_groups(step.opened.groups, sources, s.admission, step.committed.step)
        return check_micro_steps(step, groups, sources.calls, self._logged, s.packing, self._reference)

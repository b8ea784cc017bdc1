"""The core: opens steps, has sealed gradients merged, commits, and pays what a commit owes.

reads     training, micro-steps, cells, commands, trajectories, executions, model-calls: the board
writes    micro-steps; training: step-opened, member-released, step-refused, step-committed, published, checkpointed,
          checkpoint-passed-over, waiting
promises  a step opens only with its whole batch, and in a burst that the scheduler let begin; its order is logged before anybody
          computes; only a committed version is published, from an immutable buffer; whatever it waits for is named on the ledger
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from consumers.trainer.board import Board
from consumers.trainer.dues import Dues
from consumers.trainer.member import StepMember
from consumers.trainer.merging import Merging
from consumers.trainer.opening import next_inputs, opened
from consumers.trainer.pen import Pen
from consumers.trainer.publisher import Publisher
from consumers.trainer.recovery import PassedOver, recover
from consumers.trainer.settings import TrainerSettings
from gyre_engine.batching.step_inputs import ReferenceScorer, StepInputs, probe
from gyre_engine.events.training import CheckpointPassedOver, Sealed, StepCommitted, Waiting
from gyre_engine.log import Log
from gyre_engine.log.election import Deposed
from gyre_engine.training.checkpoint import Origin
from gyre_engine.training.ledger.fold import OpenStep
from gyre_engine.training.ledger.sums import mean_loss, step_totals
from gyre_engine.training.metrics import UpdateMetrics
from gyre_engine.training.replica import Optimizer, TrainingReplica
from gyre_engine.transfer import Transfer

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class Patience:
    """When the core last moved, and when it last said what it waits for."""

    since: float
    said: float = 0.0


class Core:
    """The ruling core, after its election. `advance` makes at most one move and says whether it made one."""

    def __init__(
        self, settings: TrainerSettings, epoch: int, pen: Pen, board: Board, optimizer: Optimizer, transfer: Transfer,
        member: StepMember, publisher: Publisher, reference: ReferenceScorer | None = None,
    ) -> None:  # fmt: skip
        self._settings, self._epoch, self._pen, self._board = settings, epoch, pen, board
        self._optimizer = optimizer
        self._member, self._publisher, self._reference = member, publisher, reference
        self._merging = Merging(settings, epoch, pen, optimizer, transfer, member)
        self._dues = Dues(settings, epoch, board, publisher)
        self._inputs: StepInputs | None = None
        self._progress: dict[str, tuple[int, float]] = {}
        self._patience = Patience(time.monotonic())
        self._before: dict[str, float] = {}
        """What this step waited for before it opened, since the core could have opened it."""

    def resume(self, log: Log, replica: TrainingReplica, origin: Origin | None = None) -> int:
        """Recover, and do what the core before committed and did not live to do; the version that it stands at.

        An evaluation that needs the version before, which went with the old core, gets that one first (learning.md, 10).
        """
        held = self._dues.held if self._dues.evaluations else -1
        through = held if 0 <= held < self._board.ledger.step else None
        there = partial(self._republish, held)
        recovered = recover(self._settings, log, replica, self._optimizer, origin, through, there, self._passed_over)
        self._member.holds(recovered.version)
        self._publisher.export()
        self._dues.resume(recovered)
        return recovered.version

    def _republish(self, version: int, probe_ids: list[int]) -> None:
        self._publisher.export()
        self._publisher.publish(self._epoch, version, probe_ids)

    def _passed_over(self, passed: PassedOver, instead: int) -> None:
        """Said before the steps after it are made again, which may take long."""
        logger.warning("checkpoint of step %d cannot be used, step %d is taken instead: %s", passed.step, instead, passed.reason)
        self._pen.write([CheckpointPassedOver(core_epoch=self._epoch, step=passed.step, reason=passed.reason, instead=instead)])

    @property
    def done(self) -> bool:
        """All steps of the run are committed."""
        return self._board.ledger.step >= self._settings.plan.steps

    @property
    def owes(self) -> bool:
        """Whether a committed version is still to be published or stored, or older checkpoints to be removed."""
        return self._dues.open

    def advance(self) -> bool:
        """One move. Raises Deposed where another core rules."""
        self._require_rule()
        if not self._pen.dry:
            return False
        moved = self._move()
        if moved:
            self._patience = Patience(time.monotonic())
        return moved

    def pay_last(self) -> bool:
        """For a process that was told to stop, once it has read back what it wrote: store or remove what is due, a part a call;
        whether there was one. A deposed core has none."""
        return self._rules and self._dues.pay_last()

    def _move(self) -> bool:
        if self._dues.advance():
            return True
        if evaluations := self._dues.held_back_by:
            return self._name(tuple(f"evaluation {e}" for e in evaluations))
        step = self._board.ledger.open
        if step is None:
            return False if self.done else self._open()
        return self._train(step)

    def _train(self, step: OpenStep) -> bool:
        self._release_the_silent(step)
        moved = self._merging.fetch(step)
        if not self._pen.dry:
            return True
        if self._member.advance(may_seal=not self._merging.unfetched(step)):
            return True
        return self._merge(step) or moved or self._name(self._awaited(step))

    @property
    def _rules(self) -> bool:
        ledger = self._board.ledger
        return (ledger.core_epoch, ledger.core_holder) == (self._epoch, self._settings.holder)

    def _require_rule(self) -> None:
        ledger = self._board.ledger
        if not self._rules:
            raise Deposed(
                f"the core of epoch {self._epoch} ({self._settings.holder}) ends: {ledger.core_holder} rules with {ledger.core_epoch}"
            )

    def _open(self) -> bool:
        waits = self._dues.since_paid
        inputs = next_inputs(self._board, self._settings, self._reference, waits.passed)
        if not isinstance(inputs, StepInputs):
            return self._name(inputs)
        self._inputs = inputs
        event = opened(self._board.ledger, self._epoch, self._publisher.weights_hash, inputs)
        self._pen.write([*inputs.micro_steps, event])
        self._merging.begin()
        waits.passed("prepare")
        self._before = {f"core_{wait}_s": waits.spent(wait) for wait in ("data", "burst", "prepare")}
        return True

    def _awaited(self, step: OpenStep) -> tuple[str, ...]:
        free = (f"{len(step.free)} micro-steps to be claimed",) if step.free else ()
        missing = (f"micro-step {self._member.missing} to be read",) if self._member.missing else ()
        return self._merging.unfetched(step) + missing + free

    def _name(self, names: tuple[str, ...]) -> bool:
        """Say on the ledger what is waited for, once a while. No move."""
        now, ledger = time.monotonic(), self._board.ledger
        if names and self._pen.dry and now - max(self._patience.since, self._patience.said) >= self._settings.straggler_s:
            self._patience.said = now
            waited = int((now - self._patience.since) * 1e6)
            self._pen.write([Waiting(core_epoch=self._epoch, step=ledger.step + 1, waited_us=waited, waiting_for=names)])
        return False

    def _release_the_silent(self, step: OpenStep) -> None:
        now = time.monotonic()
        for cell, member in step.members.items():
            seen = self._board.progress.get(cell, 0)
            if self._progress.get(cell, (-1, 0.0))[0] != seen:
                self._progress[cell] = (seen, now)
            silent = now - self._progress[cell][1]
            if cell != self._settings.cell and member.sealed is None and member.assigned and silent > self._settings.lease_s:
                self._merging.release(cell, member.epoch, f"no sign on the ledger for {silent:.0f} s")

    def _merge(self, step: OpenStep) -> bool:
        if not step.complete or self._merging.unfetched(step):
            return False
        times = self._merging.times
        with times.during("merge"):
            done = self._merging.update(step)
        with times.during("merge"):
            weights_hash = self._publisher.export()
        self._commit(step, done, weights_hash)
        return True

    def _commit(self, step: OpenStep, done: UpdateMetrics | None, weights_hash: str) -> None:
        of = step.opened
        committed = StepCommitted(
            core_epoch=self._epoch, step=of.step, attempt=of.attempt, merge_order=step.merge_order,
            weights_hash=weights_hash, executions=of.executions, grad_norm=_grad_norm(done), loss=mean_loss(step.seals, of.divisor),
            reward_mean=self._inputs.reward_mean if self._inputs else 0.0,
            metrics=step_totals(step.seals, of.divisor) | self._core_times(step.seals) | _of_update(done),
        )  # fmt: skip
        self._merging.begin()
        self._member.holds(of.step)
        place = self._pen.write([committed])
        self._dues.note(of.step, place, probe(self._inputs.micro_steps) if self._inputs else [])

    def _core_times(self, seals: Sequence[Sealed]) -> dict[str, float]:
        """Where the core's time went since this step opened; and before: in the last publication, and in what it waited for."""
        own = next((s.metrics for s in seals if s.cell == self._settings.cell), {})
        times = self._merging.times
        merge = times.spent("merge")
        rest = times.elapsed - merge - own.get("compute_s", 0.0) - own.get("merge_s", 0.0)
        return {
            "core_merge_s": merge, "core_wait_s": max(0.0, rest), "core_publish_s": self._dues.publish_s,
            **self._before,
        }  # fmt: skip


def _grad_norm(done: UpdateMetrics | None) -> float | None:
    """0 where nothing trained, none where what trained gave no gradient."""
    if done is None:
        return 0.0
    return None if done.skipped else done.grad_norm


def _of_update(done: UpdateMetrics | None) -> dict[str, float]:
    """Nothing where nothing trained."""
    if done is None:
        return {}
    return {"skipped": 1.0} if done.skipped else {"lr": done.lr}

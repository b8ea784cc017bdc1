"""The core: opens steps, fetches and merges sealed gradients, commits, publishes, checkpoints.

reads     the board (training, commands, trajectories, executions, model-calls)
writes    micro-steps; training: step-opened, member-released, step-refused, step-committed, published, checkpointed, waiting
promises  a step opens only with its whole batch, and in a burst that the scheduler let begin; its order is logged before anybody
          computes; only a committed version is published, from an immutable buffer; whatever it waits for is named on the ledger
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from consumers.trainer.board import Board
from consumers.trainer.member import StepMember
from consumers.trainer.pen import Pen
from consumers.trainer.publisher import Publisher
from consumers.trainer.recovery import Recovered
from consumers.trainer.refusal import in_words, require_not_refused
from consumers.trainer.settings import TrainerSettings
from consumers.trainer.stopwatch import Stopwatch
from gyre_engine.batching.step_inputs import ReferenceScorer, StepInputs, missing_calls, probe, step_inputs
from gyre_engine.events.cells import CellRole
from gyre_engine.events.training import MemberReleased, Sealed, StepCommitted, StepOpened, StepRefused, Waiting
from gyre_engine.log.election import Deposed
from gyre_engine.scheduling.classes import missing_groups, next_groups
from gyre_engine.training.ledger import OpenStep
from gyre_engine.training.merge import buffer_hash, merge, update
from gyre_engine.training.replica import NonFiniteGradient, Optimizer, TrainingError, UpdateMetrics
from gyre_engine.training.sums import step_totals
from gyre_engine.transfer import Descriptor, IntegrityError, PeerLost, Region, Transfer, WrongKey

logger = logging.getLogger(__name__)

Buffer = NDArray[np.float32]


@dataclass(slots=True)
class Patience:
    """When the core last saw something happen, and when it last said what it waits for."""

    since: float
    said: float = 0.0


class Core:
    """The ruling core, after its election and recovery. `advance` makes at most one move and says whether it made one."""

    def __init__(
        self, settings: TrainerSettings, epoch: int, pen: Pen, board: Board, optimizer: Optimizer, transfer: Transfer,
        member: StepMember, publisher: Publisher, reference: ReferenceScorer | None = None,
    ) -> None:  # fmt: skip
        self._settings, self._epoch, self._pen, self._board = settings, epoch, pen, board
        self._optimizer, self._transfer = optimizer, transfer
        self._member, self._publisher, self._reference = member, publisher, reference
        self._fetched: dict[tuple[str, int], Buffer] = {}
        self._inputs: StepInputs | None = None
        self._progress: dict[str, tuple[int, float]] = {}
        self._patience = Patience(time.monotonic())
        self._unpublished: list[int] | None = None
        """The probe of a committed version that is not published yet."""
        self._stored: int | None = None
        """Step of a checkpoint for which older ones are not removed yet."""
        self._times, self._ready, self._data_s, self._publish_s = Stopwatch(), Stopwatch(), 0.0, 0.0
        """Of this step, from its opening; and since the core could have opened it."""

    def resume(self, recovered: Recovered) -> None:
        """Do what the core before committed and did not live to do: a checkpoint that is due, and the publication."""
        version = recovered.version
        if version and not recovered.checkpointed and self._is_due(version):
            self._checkpoint(version, recovered.position)
        before = self._board.ledger.published
        if before is None or before.version == version:
            self._publisher.publish(self._epoch, version, [])
        else:
            # An evaluation may still sample with the version before.
            self._unpublished = []

    @property
    def done(self) -> bool:
        """All steps of the run are committed."""
        return self._board.ledger.step >= self._settings.plan.steps

    def advance(self) -> bool:
        """One move. Raises Deposed where another core rules."""
        self._require_rule()
        if not self._pen.dry:
            return False
        step = self._board.ledger.open
        if self._stored is not None:
            return self._prune(self._stored)
        if self._unpublished is not None:
            return self._publish(self._unpublished)
        if step is None:
            return False if self.done else self._open()
        self._patience = Patience(time.monotonic())
        self._release_the_silent(step)
        moved = self._fetch(step)
        if not self._pen.dry:
            return True
        if self._member.advance(may_seal=self._rest_is_fetched(step)):
            return True
        return self._merge(step) or moved

    def _require_rule(self) -> None:
        ledger = self._board.ledger
        if (ledger.core_epoch, ledger.core_holder) != (self._epoch, self._settings.holder):
            raise Deposed(
                f"the core of epoch {self._epoch} ({self._settings.holder}) ends: {ledger.core_holder} rules with {ledger.core_epoch}"
            )

    def _open(self) -> bool:
        board, settings = self._board, self._settings
        require_not_refused(board.refused)
        backlog = board.backlog
        groups = next_groups(backlog.admitted, backlog.consumed, settings.plan)
        unread = missing_calls(groups, backlog.calls) if groups else ()
        if groups is None or unread:
            self._name_what_is_missing(unread)
            return False
        if board.role is not CellRole.TRAINING or not self._burst_has_begun():
            return False
        inputs = step_inputs(board.ledger.step + 1, groups, backlog.calls, settings.packing, self._reference)
        self._inputs, self._fetched = self._fresh(inputs), {}
        self._pen.write([*inputs.micro_steps, self._opened(inputs)])
        self._times, self._data_s = Stopwatch(), self._ready.elapsed
        return True

    def _burst_has_begun(self) -> bool:
        """The scheduler lets each burst begin: what is ready might be wanted less than this cell's engine."""
        return self._board.bursts.begun >= self._settings.plan.burst_start(self._board.ledger.step)

    def _fresh(self, inputs: StepInputs) -> StepInputs:
        plan = self._settings.plan
        if inputs.staleness_max > plan.phi + plan.mu - 1:
            raise TrainingError(
                f"step {self._board.ledger.step + 1} would train tokens that are {inputs.staleness_max} versions old; "
                f"phi {plan.phi} + mu {plan.mu} - 1 allows {plan.phi + plan.mu - 1}"
            )
        return inputs

    def _opened(self, inputs: StepInputs) -> StepOpened:
        ledger = self._board.ledger
        return StepOpened(
            core_epoch=self._epoch, step=ledger.step + 1, attempt=ledger.attempts + 1,
            weights_hash=self._publisher.weights_hash, groups=tuple(g.group for g in inputs.groups), scores=inputs.scores,
            micro_steps=tuple(m.micro_step for m in inputs.micro_steps), executions=inputs.executions, divisor=inputs.divisor,
            staleness_max=inputs.staleness_max, staleness_mean=inputs.staleness_mean,
        )  # fmt: skip

    def _name_what_is_missing(self, unread: tuple[str, ...]) -> None:
        backlog = self._board.backlog
        known = {g.group_number for g in backlog.admitted} | set(backlog.consumed.values())
        missing = missing_groups(known, len(backlog.consumed), self._settings.plan)
        self._name(tuple(f"group {n}" for n in missing[:16]) + tuple(f"model calls of {e}" for e in unread[:16]))

    def _name(self, names: tuple[str, ...]) -> None:
        """Say on the ledger what is waited for, once a while."""
        now, ledger = time.monotonic(), self._board.ledger
        if now - max(self._patience.since, self._patience.said) < self._settings.straggler_s:
            return
        self._patience.said = now
        waited = int((now - self._patience.since) * 1e6)
        self._pen.write([Waiting(core_epoch=self._epoch, step=ledger.step + 1, waited_us=waited, waiting_for=names)])

    def _release_the_silent(self, step: OpenStep) -> None:
        now = time.monotonic()
        for cell, member in step.members.items():
            seen = self._board.progress.get(cell, 0)
            if self._progress.get(cell, (-1, 0.0))[0] != seen:
                self._progress[cell] = (seen, now)
            silent = now - self._progress[cell][1]
            if cell != self._settings.cell and member.sealed is None and member.assigned and silent > self._settings.lease_s:
                self._release(cell, member.epoch, f"no sign on the ledger for {silent:.0f} s")

    def _release(self, cell: str, epoch: int, reason: str) -> None:
        self._fetched.pop((cell, epoch), None)
        released = MemberReleased(core_epoch=self._epoch, cell=cell, member_epoch=epoch, reason=reason)
        self._pen.write([released])

    def _fetch(self, step: OpenStep) -> bool:
        """Copy the next sealed buffer while its owner lives; a buffer that cannot be read sends its work back."""
        for cell, epoch in step.merge_order:
            sealed = step.members[cell].sealed
            if sealed is None or cell == self._settings.cell or (cell, epoch) in self._fetched:
                continue
            try:
                with self._times.during("merge"):
                    self._fetched[cell, epoch] = self._read(sealed)
            except (PeerLost, WrongKey, IntegrityError) as error:
                self._release(cell, epoch, f"its sealed buffer cannot be read: {error}")
            return True
        return False

    def _read(self, sealed: Sealed) -> Buffer:
        descriptor = Descriptor.from_bytes(sealed.descriptor)
        if descriptor.nbytes % 4:
            raise IntegrityError(f"{descriptor.nbytes} bytes of {sealed.cell} are no gradients")
        buffer = np.empty(descriptor.nbytes // 4, dtype="<f4")
        self._transfer.read(descriptor, Region.of_array(buffer), timeout=self._settings.lease_s)
        if buffer_hash(buffer) != sealed.buffer_hash:
            raise IntegrityError(f"the bytes of {sealed.cell} are not those that it sealed")
        return buffer

    def _rest_is_fetched(self, step: OpenStep) -> bool:
        others = [m for c, m in step.members.items() if c != self._settings.cell and m.assigned]
        return all(m.sealed is not None and (m.cell, m.epoch) in self._fetched for m in others)

    def _merge(self, step: OpenStep) -> bool:
        if not step.complete or not self._rest_is_fetched(step):
            return False
        own = self._member.buffer()
        buffers = [own if cell == self._settings.cell else self._fetched[cell, epoch] for cell, epoch in step.merge_order]
        if any(b is None for b in buffers):
            raise TrainingError(f"step {step.opened.step}: this process sealed gradients that it does not hold any more")
        with self._times.during("merge"):
            done = self._update(step, [b for b in buffers if b is not None])
        self._commit(step, done)
        return True

    def _update(self, step: OpenStep, buffers: list[Buffer]) -> UpdateMetrics | None:
        """Raises TrainingError, with the weights as they were, where the gradient is not finite and such steps are not skipped."""
        try:
            done = update(self._optimizer, merge(buffers), step.opened.divisor, self._settings.hyper)
        except NonFiniteGradient as error:
            raise TrainingError(self._refuse(step, buffers, "stop")) from error
        if done is not None and done.skipped:
            self._refuse(step, buffers, "skip")
        return done

    def _refuse(self, step: OpenStep, buffers: list[Buffer], outcome: str) -> str:
        """Say on the ledger that there was no update, and whose gradients were not finite; the same in words."""
        opened = step.opened
        cells = tuple(cell for (cell, _), b in zip(step.merge_order, buffers, strict=True) if not np.isfinite(b).all())
        seals = [step.members[cell].sealed for cell in cells]
        refused = StepRefused(
            core_epoch=self._epoch, step=opened.step, attempt=opened.attempt, outcome=outcome, cells=cells,
            micro_steps=tuple(s.nonfinite for s in seals if s is not None and s.nonfinite),
        )  # fmt: skip
        self._pen.write([refused])
        text = in_words(refused)
        logger.error("%s", text)
        return text

    def _commit(self, step: OpenStep, done: UpdateMetrics | None) -> None:
        opened = step.opened
        with self._times.during("merge"):
            weights_hash = self._publisher.export()
        seals = [m.sealed for m in step.members.values() if m.sealed is not None]
        loss = sum(s.loss_sum for s in seals) / opened.executions if opened.executions else 0.0
        committed = StepCommitted(
            core_epoch=self._epoch, step=opened.step, attempt=opened.attempt, merge_order=step.merge_order,
            weights_hash=weights_hash, executions=opened.executions, grad_norm=done.grad_norm if done else 0.0, loss=loss,
            reward_mean=self._inputs.reward_mean if self._inputs else 0.0,
            metrics=step_totals(seals, opened.executions) | self._core_times(seals) | _of_update(done),
        )  # fmt: skip
        self._member.holds(opened.step)
        self._unpublished = probe(self._inputs.micro_steps) if self._inputs else []
        place = self._pen.write([committed])
        if self._is_due(opened.step):
            self._checkpoint(opened.step, place)

    def _core_times(self, seals: list[Sealed]) -> dict[str, float]:
        """Where the core's time went since this step opened; and before: in the last publication, and until its data were there.

        The next account begins here.
        """
        own = next((s.metrics for s in seals if s.cell == self._settings.cell), {})
        times, self._times = self._times, Stopwatch()
        merge = times.spent("merge")
        rest = times.elapsed - merge - own.get("compute_s", 0.0) - own.get("merge_s", 0.0)
        return {
            "core_merge_s": merge, "core_wait_s": max(0.0, rest), "core_publish_s": self._publish_s, "core_data_s": self._data_s,
        }  # fmt: skip

    def _checkpoint(self, step: int, position: int) -> None:
        board = self._board
        data = {"groups_consumed": step * self._settings.plan.batch, "groups_dispatched": board.dispatched, "draws": board.drawn}
        self._publisher.checkpoint(self._epoch, step, position, self._settings.checkpoint_url, data)
        self._stored = step if self._settings.checkpoint_keep else None

    def _prune(self, step: int) -> bool:
        """Only the ruling core, which has read its `checkpointed` back, removes others: a recovery finds this one."""
        self._stored = None
        self._publisher.prune(step, self._settings.checkpoint_url, self._settings.checkpoint_keep)
        return True

    def _is_due(self, step: int) -> bool:
        """Whether this step ends with a checkpoint."""
        every = self._settings.checkpoint_every
        return step == self._settings.plan.steps or bool(every and step % every == 0)

    def _publish(self, probe_ids: list[int]) -> bool:
        """Publish what is committed; not while an evaluation samples with the version before (learning.md, 10)."""
        plan, version, backlog = self._settings.plan, self._board.ledger.step, self._board.backlog
        if plan.for_samplers(version):
            due = self._settings.evaluation.pinned_before(version, plan.mu, plan.steps)
            awaited = sorted((backlog.evaluations | set(due)) - backlog.reported)
            if awaited:
                self._name(tuple(f"evaluation {e}" for e in awaited))
                return False
        ledger = self._board.ledger
        self._unpublished = None
        began = Stopwatch()
        self._publisher.publish(self._epoch, ledger.step, probe_ids)
        self._publish_s, self._ready = began.elapsed, Stopwatch()
        return True


def _of_update(done: UpdateMetrics | None) -> dict[str, float]:
    """Nothing where nothing trained."""
    if done is None:
        return {}
    return {"skipped": 1.0} if done.skipped else {"lr": done.lr}

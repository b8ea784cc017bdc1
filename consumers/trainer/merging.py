"""Merging a step: sealed gradients are fetched while their owners live, summed in the ledger's order, and make the update.

writes    training: member-released, step-refused
promises  only bytes with the hash that was sealed are summed; a buffer that cannot be read sends its work back
"""

from __future__ import annotations

import logging

import numpy as np
from numpy.typing import NDArray

from consumers.trainer.member import StepMember
from consumers.trainer.pen import Pen
from consumers.trainer.refusal import in_words
from consumers.trainer.settings import TrainerSettings
from consumers.trainer.stopwatch import Stopwatch
from gyre_engine.events.training import MemberReleased, Sealed, StepRefused
from gyre_engine.training.ledger.fold import OpenStep
from gyre_engine.training.ledger.merge import buffer_hash, merge, update
from gyre_engine.training.metrics import UpdateMetrics
from gyre_engine.training.replica import NonFiniteGradient, Optimizer, TrainingError
from gyre_engine.transfer import Descriptor, IntegrityError, PeerLost, Region, Transfer, WrongKey

logger = logging.getLogger(__name__)

Buffer = NDArray[np.float32]


class Merging:
    """The core's side of a step's gradients. `times`: of this step, from its opening."""

    def __init__(
        self, settings: TrainerSettings, epoch: int, pen: Pen, optimizer: Optimizer, transfer: Transfer, member: StepMember
    ) -> None:
        self._settings, self._epoch, self._pen = settings, epoch, pen
        self._optimizer, self._transfer, self._member = optimizer, transfer, member
        self.begin()

    def begin(self) -> None:
        """A step opens."""
        self.fetched: dict[tuple[str, int], Buffer] = {}
        self.times = Stopwatch()

    def release(self, cell: str, epoch: int, reason: str) -> None:
        """Void what this member did in the step."""
        self.fetched.pop((cell, epoch), None)
        released = MemberReleased(core_epoch=self._epoch, cell=cell, member_epoch=epoch, reason=reason)
        self._pen.write([released])

    def fetch(self, step: OpenStep) -> bool:
        """Copy the next sealed buffer; whether there was one."""
        for cell, epoch in step.merge_order:
            sealed = step.members[cell].sealed
            if sealed is None or cell == self._settings.cell or (cell, epoch) in self.fetched:
                continue
            try:
                with self.times.during("merge"):
                    self.fetched[cell, epoch] = self._read(sealed)
            except (PeerLost, WrongKey, IntegrityError) as error:
                self.release(cell, epoch, f"its sealed buffer cannot be read: {error}")
            return True
        return False

    def unfetched(self, step: OpenStep) -> tuple[str, ...]:
        """Other members whose work is not here yet, each with what it holds."""
        others = [m for c, m in step.members.items() if c != self._settings.cell and m.assigned]
        missing = [m for m in others if m.sealed is None or (m.cell, m.epoch) not in self.fetched]
        return tuple(f"{m.cell} to seal {len(m.assigned)} micro-steps" for m in missing)

    def update(self, step: OpenStep) -> UpdateMetrics | None:
        """Sum all buffers and make the optimizer's update; None where nothing trained.

        Raises TrainingError, with the weights as they were, where the gradient is not finite and such steps are not skipped.
        """
        buffers = self._buffers(step)
        try:
            done = update(self._optimizer, merge(buffers), step.opened.divisor, self._settings.hyper)
        except NonFiniteGradient as error:
            raise TrainingError(self._refuse(step, buffers, "stop")) from error
        if done is not None and done.skipped:
            self._refuse(step, buffers, "skip")
        return done

    def _read(self, sealed: Sealed) -> Buffer:
        descriptor = Descriptor.from_bytes(sealed.descriptor)
        if descriptor.nbytes % 4:
            raise IntegrityError(f"{descriptor.nbytes} bytes of {sealed.cell} are no gradients")
        buffer = np.empty(descriptor.nbytes // 4, dtype="<f4")
        self._transfer.read(descriptor, Region.of_array(buffer), timeout=self._settings.lease_s)
        if buffer_hash(buffer) != sealed.buffer_hash:
            raise IntegrityError(f"the bytes of {sealed.cell} are not those that it sealed")
        return buffer

    def _buffers(self, step: OpenStep) -> list[Buffer]:
        own = self._member.buffer()
        found = [own if cell == self._settings.cell else self.fetched[cell, epoch] for cell, epoch in step.merge_order]
        if any(b is None for b in found):
            raise TrainingError(f"step {step.opened.step}: this process sealed gradients that it does not hold any more")
        return [b for b in found if b is not None]

    def _refuse(self, step: OpenStep, buffers: list[Buffer], outcome: str) -> str:
        """Say on the ledger that there was no update, and whose gradients were not finite; the same in words."""
        attempt = step.opened
        cells = tuple(cell for (cell, _), b in zip(step.merge_order, buffers, strict=True) if not np.isfinite(b).all())
        seals = [step.members[cell].sealed for cell in cells]
        refused = StepRefused(
            core_epoch=self._epoch, step=attempt.step, attempt=attempt.attempt, outcome=outcome, cells=cells,
            micro_steps=tuple(s.nonfinite for s in seals if s is not None and s.nonfinite),
        )  # fmt: skip
        self._pen.write([refused])
        text = in_words(refused)
        logger.error("%s", text)
        return text

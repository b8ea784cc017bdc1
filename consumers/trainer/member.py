"""A member of a step: joins with the step's weights, claims, computes what the ledger assigned to it, seals.

writes    training: member-joined, claimed, sealed
promises  computes only what it has read back as its own; writes no more to a buffer that it has sealed until the step commits
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from consumers.trainer.board import Board
from consumers.trainer.bounds import require_budget, require_known_weights
from consumers.trainer.pen import Pen
from consumers.trainer.settings import TrainerSettings
from consumers.trainer.stopwatch import Stopwatch
from gyre_engine.batching import PackedMicroStep
from gyre_engine.events.cells import CellRole
from gyre_engine.events.training import Claimed, MemberJoined, Sealed
from gyre_engine.training.ledger.fold import Member, OpenStep
from gyre_engine.training.ledger.merge import buffer_hash
from gyre_engine.training.ledger.sums import flat_metrics
from gyre_engine.training.metrics import StepMetrics
from gyre_engine.training.replica import TrainingReplica
from gyre_engine.transfer import Descriptor, IntegrityError, PeerLost, Region, Transfer, WrongKey
from gyre_engine.transfer.pull import Pull

logger = logging.getLogger(__name__)

UNREGISTER_LIMIT_S = 10.0
"""How long the reader of a buffer that is over is waited for."""


@dataclass(slots=True)
class Seat:
    """This process's place in one attempt of a step."""

    step: int
    attempt: int
    epoch: int
    done: list[str] = field(default_factory=list)
    metrics: StepMetrics = field(default_factory=StepMetrics)
    sealed: bool = False
    nonfinite: str = ""
    """The micro-step since which the sum is not finite."""
    times: Stopwatch = field(default_factory=Stopwatch)
    """Since it joined; what came before went into its weights."""
    publish_s: float = 0.0


class StepMember:
    """The member's side of the protocol for one cell. `advance` does at most one micro-step and says whether it did anything."""

    def __init__(self, settings: TrainerSettings, pen: Pen, board: Board, replica: TrainingReplica, transfer: Transfer) -> None:
        self._settings, self._pen, self._board = settings, pen, board
        self._replica, self._transfer = replica, transfer
        self._pull = Pull(transfer)
        self._held_version = -1
        self._took_s = 0.0
        """How long it took the last weights; 0 where it held them."""
        self.seat: Seat | None = None
        self._sealed_bytes: NDArray[np.float32] | None = None
        self._descriptor: Descriptor | None = None
        self._kept: list[tuple[Descriptor, NDArray[np.float32]]] = []
        """Buffers of steps that are over, which somebody still read when they were to go."""
        self.missing = ""
        """The micro-step that it waits for: the ledger gave it, and the log has not brought it yet."""
        self._missed_at = 0.0

    def holds(self, version: int) -> None:
        """The replica has these weights already (the core after its own update)."""
        self._held_version = self._replica.version = version

    def advance(self, *, may_seal: bool) -> bool:
        """One move in the open step. `may_seal`: nothing else will be left to claim (the core seals last)."""
        step = self._board.ledger.open
        if step is None:
            self._leave()
            return False
        if self._seat_is_stale(step):
            self._leave()
        if self.seat is None:
            return self._join(step) if self._board.role is CellRole.TRAINING else False
        member = self._board.ledger.member(self._settings.cell, self.seat.epoch)
        if member is None or self.seat.sealed or not self._pen.dry:
            return False
        return self._work(step, member, may_seal)

    def buffer(self) -> NDArray[np.float32] | None:
        """What this process sealed in the open attempt; None where it has sealed nothing in it."""
        if self.seat is None or not self.seat.sealed:
            return None
        return self._sealed_bytes

    def _seat_is_stale(self, step: OpenStep) -> bool:
        seat = self.seat
        if seat is None:
            return False
        if (seat.step, seat.attempt) != (step.opened.step, step.opened.attempt):
            return True
        # Released: the floor rose above this seat and the member is gone. The sum in the buffer is void (log-rules, 1).
        gone = self._board.ledger.member(self._settings.cell, seat.epoch) is None
        return gone and self._board.ledger.member_floor.get(self._settings.cell, 0) > seat.epoch

    def _join(self, step: OpenStep) -> bool:
        opened, cell = step.opened, self._settings.cell
        if cell in step.order_sealed or not opened.micro_steps:
            return False
        require_known_weights(self._board.ledger, opened)
        if not self._take_weights(opened.step - 1, opened.weights_hash):
            return False
        self._replica.zero()
        epoch = max(1, self._board.ledger.member_floor.get(cell, 1))
        self.seat = Seat(opened.step, opened.attempt, epoch, publish_s=self._took_s)
        joined = MemberJoined(
            cell=cell, member_epoch=epoch, step=opened.step, attempt=opened.attempt, weights_hash=opened.weights_hash
        )
        self._pen.write([joined])
        return True

    def _take_weights(self, version: int, weights_hash: str) -> bool:
        self._took_s, times = 0.0, Stopwatch()
        if self._held_version == version:
            return True
        published = self._board.published.get(version)
        if published is None or published.weights_hash != weights_hash:
            return False
        try:
            image = self._pull.read(weights_hash, published.nbytes, published.descriptor, self._settings.lease_s)
        except (PeerLost, WrongKey, IntegrityError) as error:
            logger.warning("%s: version %d cannot be read yet: %s", self._settings.cell, version, error)
            return False
        self._replica.load(image.tobytes(), version)
        self._held_version, self._took_s = version, times.elapsed
        return True

    def _work(self, step: OpenStep, member: Member, may_seal: bool) -> bool:
        seat = self.seat
        assert seat is not None
        todo = [m for m in member.assigned if m not in seat.done]
        # The core stays to the end of its step: nobody else would take over what it left.
        leaving = self._board.role is not CellRole.TRAINING and not self._settings.core
        more = max(0, self._settings.claim_ahead - len(todo)) if step.free else 0
        if more and not leaving:
            self._claim(seat, more)
            if not todo:
                return True
        if todo and not leaving:
            if not more and seat.done and todo[0] in self._board.packs and not self._settings.core:
                self._claim(seat, 0)  # a sign of life where there is nothing to claim: the lease is for one micro-step
            return self._compute(seat, todo[0])
        if leaving or (not todo and not step.free and may_seal):
            self._seal(seat)
            return True
        return False

    def _claim(self, seat: Seat, count: int) -> None:
        cell = self._settings.cell
        claim = Claimed(cell=cell, member_epoch=seat.epoch, step=seat.step, attempt=seat.attempt, count=count)
        self._pen.write([claim])

    def _compute(self, seat: Seat, micro_step: str) -> bool:
        pack = self._board.packs.get(micro_step)
        if pack is None:
            self._miss(micro_step)
            return False
        self.missing = ""
        require_budget(micro_step, pack, self._settings.packing)
        with seat.times.during("compute"):
            seat.metrics = seat.metrics + self._replica.accumulate(pack, self._settings.loss)
            self._watch(seat, micro_step, pack)
        seat.done.append(micro_step)
        return True

    def _miss(self, micro_step: str) -> None:
        """Name what did not come, once a while."""
        now = time.monotonic()
        if self.missing != micro_step:
            self.missing, self._missed_at = micro_step, now
        elif now - self._missed_at >= self._settings.straggler_s:
            self._missed_at = now
            logger.warning("%s waits for micro-step %s, which it is to compute and has not read", self._settings.cell, micro_step)

    def _watch(self, seat: Seat, micro_step: str, pack: PackedMicroStep) -> None:
        """Name the first micro-step that makes the sum infinite or not a number. What follows from it is the core's to say."""
        if not seat.nonfinite and not self._replica.finite():
            seat.nonfinite = micro_step
            executions = ", ".join(execution for execution, _, _ in pack.executions)
            logger.error("%s: the gradient is not finite since micro-step %s, of %s", self._settings.cell, micro_step, executions)

    def _seal(self, seat: Seat) -> None:
        with seat.times.during("merge"):
            buffer = self._replica.gradient_buffer()
            self._sealed_bytes = np.array(buffer, dtype="<f4")
            self._descriptor = self._transfer.register(Region.of_array(self._sealed_bytes))
            digest = buffer_hash(buffer)
        sealed = Sealed(
            cell=self._settings.cell, member_epoch=seat.epoch, step=seat.step, attempt=seat.attempt,
            micro_steps=tuple(seat.done), buffer_hash=digest, descriptor=self._descriptor.to_bytes(),
            nonfinite=seat.nonfinite, loss_sum=seat.metrics.loss, tokens=seat.metrics.targets, packed_tokens=seat.metrics.tokens,
            took_us=int(seat.times.elapsed * 1e6), metrics=flat_metrics(seat.metrics) | _times(seat),
        )  # fmt: skip
        seat.sealed = True
        self._pen.write([sealed])

    def _leave(self) -> None:
        self.seat, self.missing = None, ""
        if self._descriptor is None or self._sealed_bytes is None:
            return
        self._kept.append((self._descriptor, self._sealed_bytes))
        self._descriptor = self._sealed_bytes = None
        while self._kept:
            try:
                self._transfer.unregister(self._kept[0][0], timeout=UNREGISTER_LIMIT_S)
            except TimeoutError as error:
                # Closed to others, and tried again when the next one goes.
                logger.warning("%s: a buffer of a step that is over stays in memory: %s", self._settings.cell, error)
                return
            del self._kept[0]


def _times(seat: Seat) -> dict[str, float]:
    """Where the member's time went up to its seal; what is neither computing nor sealing was waiting for work or the log."""
    compute, merge = seat.times.spent("compute"), seat.times.spent("merge")
    return {
        "compute_s": compute, "merge_s": merge, "wait_s": max(0.0, seat.times.elapsed - compute - merge), "publish_s": seat.publish_s,
    }  # fmt: skip

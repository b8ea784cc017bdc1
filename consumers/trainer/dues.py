"""What a committed step still owes: its publication, then its checkpoint, then the removal of older ones.

reads     the board
writes    training: published, checkpointed
promises  only what stands on the ledger as committed under this core is published or stored; engines wait for no store; while an
          evaluation needs the version before, no checkpoint goes from which a later core could make that one again
"""

from __future__ import annotations

from consumers.trainer.board import Board
from consumers.trainer.publisher import Publisher
from consumers.trainer.recovery import Recovered
from consumers.trainer.settings import TrainerSettings
from consumers.trainer.stopwatch import Stopwatch


class Dues:
    """`note` what was committed; each `advance`, which only a ruling core that has read its own words back may call, pays a part."""

    def __init__(self, settings: TrainerSettings, epoch: int, board: Board, publisher: Publisher) -> None:
        self._settings, self._epoch, self._board, self._publisher = settings, epoch, board, publisher
        self._unpublished: list[int] | None = None
        """The probe of a committed version that is not published yet."""
        self._unstored: tuple[int, int] | None = None
        """Step, and place of its commit on the ledger, of a checkpoint that is due."""
        self._stored: int | None = None
        """Step of a checkpoint for which older ones are not removed yet."""
        self.publish_s, self.since_paid = 0.0, Stopwatch()
        """How long the last publication took; the time since the last due was paid."""

    @property
    def open(self) -> bool:
        """Whether anything is still to be published, stored or removed."""
        return any(due is not None for due in (self._unpublished, self._unstored, self._stored))

    @property
    def held(self) -> int:
        """The version that engines sample with, -1 for none: the last one that was published for them."""
        plan, published = self._settings.plan, self._board.ledger.published
        if published is None:
            return -1
        return published.version if plan.for_samplers(published.version) else plan.burst_start(published.version)

    @property
    def evaluations(self) -> tuple[str, ...]:
        """Those that sample with the version that engines hold, and are not reported."""
        plan, backlog = self._settings.plan, self._board.backlog
        due = self._settings.evaluation.pinned_before(self.held + 1, plan.mu, plan.steps)
        return tuple(sorted((backlog.evaluations | set(due)) - backlog.reported))

    @property
    def held_back_by(self) -> tuple[str, ...]:
        """Evaluations that keep the committed version from being published (learning.md, 10)."""
        version = self._board.ledger.step
        if self._unpublished is None or not self._settings.plan.for_samplers(version) or self.held == version:
            return ()
        return self.evaluations

    def note(self, step: int, place: int, probe: list[int], *, stored: bool = False) -> None:
        """This step is committed, at this offset of the ledger."""
        self._unpublished = probe
        self._unstored = (step, place) if not stored and self._is_due(step) else None

    def resume(self, recovered: Recovered) -> None:
        """What the core before committed and did not live to do; its last publication went with it, so that one is made anew."""
        self.note(recovered.version, recovered.position, recovered.probe, stored=recovered.checkpointed)
        if not self.held_back_by:
            self._publish(recovered.probe)
        self.since_paid = Stopwatch()

    def advance(self) -> bool:
        """Pay one part; whether there was one that could be paid."""
        if self._unpublished is not None and not self.held_back_by:
            self._publish(self._unpublished)
        elif not self.pay_last():
            return False
        self.since_paid = Stopwatch()
        return True

    def pay_last(self) -> bool:
        """A part of what is due to the store alone, as where the process ends; whether there was one that could be paid."""
        if self._unstored is not None:
            self._store(*self._unstored)
        elif self._stored is not None and self._may_prune(self._stored):
            self._prune(self._stored)
        else:
            return False
        return True

    def _publish(self, probe: list[int]) -> None:
        began = Stopwatch()
        self._unpublished = None
        self._publisher.publish(self._epoch, self._board.ledger.step, probe)
        self.publish_s = began.elapsed

    def _store(self, step: int, position: int) -> None:
        board = self._board
        data = {"groups_consumed": step * self._settings.plan.batch, "groups_dispatched": board.dispatched, "draws": board.drawn}
        self._unstored = None
        self._publisher.checkpoint(self._epoch, step, position, self._settings.checkpoint_url, data, board.void)
        self._stored = step if self._settings.checkpoint_keep else None

    def _may_prune(self, step: int) -> bool:
        return step <= self.held or not self.evaluations

    def _prune(self, step: int) -> None:
        """Only once `checkpointed` was read back: a recovery finds this one."""
        self._stored = None
        self._publisher.prune(step, self._settings.checkpoint_url, self._settings.checkpoint_keep)

    def _is_due(self, step: int) -> bool:
        """Whether this step ends with a checkpoint. The initial weights are stored already."""
        every = self._settings.checkpoint_every
        return step > 0 and (step == self._settings.plan.steps or bool(every and step % every == 0))

"""The trainer process of one cell: reads, then moves, until it is told to stop.

reads     training, micro-steps, cells; the core also commands, trajectories, executions, model-calls
writes    training, micro-steps
promises  ends with an error, never in silence, where the ledger cannot be followed
"""

from __future__ import annotations

import logging
import threading
from pathlib import Path

from consumers.trainer.board import CORE_TOPICS, LEDGER_TOPICS, Board
from consumers.trainer.core import Core
from consumers.trainer.member import StepMember
from consumers.trainer.pen import Pen
from consumers.trainer.publisher import Publisher, small_files
from consumers.trainer.settings import TrainerSettings
from gyre_engine.batching.step_inputs import fixed_probe
from gyre_engine.events import Recorded
from gyre_engine.events.training import CoreElected
from gyre_engine.log import Follower, Log
from gyre_engine.log.consumer import Consumer, Reading, Report, serve
from gyre_engine.log.election import win
from gyre_engine.training.checkpoint import Origin
from gyre_engine.training.core_replica import CoreReplica
from gyre_engine.training.model.shape import ModelShape
from gyre_engine.training.opening import open_replica
from gyre_engine.training.reference import BorrowedReplica
from gyre_engine.transfer.kinds import open_transfer

logger = logging.getLogger(__name__)

IDLE_POLL_S = 0.5
"""Longest sleep of an idle trainer; a record wakes it at once."""


def replica_of(settings: TrainerSettings) -> CoreReplica:
    """The cell's replica. Heavy. Call it before anything starts a thread, a log too: the cell's other ranks are forked here."""
    return open_replica(Path(settings.model_path), settings.options, settings.mesh, scratch=settings.scratch)


def run(
    settings: TrainerSettings, log: Log, replica: CoreReplica, stop: threading.Event | None = None,
    report: Report | None = None,
) -> None:  # fmt: skip
    """Train with `replica_of(settings)` until SIGTERM or `stop`, in a process of its own."""
    serve(Trainer(settings, log, replica, report), stop)


class Trainer(Consumer):
    """Folds what it reads into a Board; once it has read what stands there, it moves as a member, the core also as the core."""

    def __init__(self, settings: TrainerSettings, log: Log, replica: CoreReplica, report: Report | None = None) -> None:
        self.name = f"trainer-{settings.cell}"
        self.topics = CORE_TOPICS if settings.core else LEDGER_TOPICS
        super().__init__(log, Reading(batch=1000, poll_seconds=IDLE_POLL_S), report)
        self._settings, self._replica = settings, replica
        self._board = Board(settings.cell)
        self._pen = Pen(log, self._board, settings.lease_s)
        self._transfer = open_transfer(settings.transfer, settings.transfer_host, secret=settings.secret or None)
        self._member = StepMember(settings, self._pen, self._board, self._replica, self._transfer)
        self._core: Core | None = None
        self._busy = False

    def group(self) -> None:
        """None: the board is folded from the beginning."""

    def handle(self, record: Recorded) -> None:
        self._board.see(record)

    def caught_up(self) -> None:
        """The core takes over; satellites wait for a step."""
        if self._settings.core:
            self._core = self._take_over()

    def idle(self) -> None:
        """At most one move."""
        if self.is_caught_up:
            self._busy = self._core.advance() if self._core else self._member.advance(may_seal=True)

    def patience(self) -> float:
        """No wait while there is work to do."""
        return 0.0 if self._busy else IDLE_POLL_S

    def last_words(self, follower: Follower) -> None:
        """The run may end with the last commit: its checkpoint is stored first, and those go that it replaces."""
        while self._core is not None and self._core.owes:
            self.read_on(lambda: self._pen.dry, "the ledger did not give back what was written before the stop")
            if not self._core.pay_last():
                return

    def shut(self) -> None:
        self._transfer.close()
        self._replica.close()

    def _take_over(self) -> Core:
        from gyre_engine.training.model.flat import layout_digest
        from gyre_engine.training.optimizer.adamw import AdamW

        settings, pen, board = self._settings, self._pen, self._board
        optimizer = AdamW(self._replica.parameters, self._replica.shards())
        origin = Origin(layout_digest(self._replica.parameters.layout), settings.options.dtype, settings.packing.config_hash)
        epoch = win(settings.holder, self._propose, lambda: (board.ledger.core_epoch, board.ledger.core_holder))
        folder = Path(settings.model_path)
        fixed = fixed_probe(ModelShape.of_folder(folder).vocab, settings.packing.context)
        publisher = Publisher(pen, self._replica, optimizer, self._transfer, small_files(folder), origin, fixed)
        reference = BorrowedReplica(self._replica, Path(settings.reference)) if settings.reference else None
        core = Core(settings, epoch, pen, board, optimizer, self._transfer, self._member, publisher, reference)
        logger.info("core of epoch %d at step %d", epoch, core.resume(self.log, self._replica, origin))
        return core

    def _propose(self, epoch: int) -> None:
        self._pen.write([CoreElected(core_epoch=epoch, holder=self._settings.holder, cell=self._settings.cell)])
        self.read_on(lambda: self._pen.dry, "the ledger did not give back the election that was just written")

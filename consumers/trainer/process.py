"""The trainer process of one cell: reads, then moves, until it is told to stop.

reads     training, micro-steps, cells; the core also trajectories, executions, model-calls
writes    training, micro-steps
promises  ends with an error, never in silence, where the ledger cannot be followed
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from consumers.trainer.board import CORE_TOPICS, LEDGER_TOPICS, Board
from consumers.trainer.core import Core
from consumers.trainer.member import Trainee
from consumers.trainer.pen import Pen
from consumers.trainer.publisher import Publisher, small_files
from consumers.trainer.recovery import elect, recover
from consumers.trainer.settings import TrainerSettings
from gyre_engine.events.training import CoreElected
from gyre_engine.log import Follower, Log
from gyre_engine.log.catching_up import catch_up, read_until
from gyre_engine.signals import stop_event
from gyre_engine.training.replica import ReplicaOptions
from gyre_engine.transfer import Transfer
from gyre_engine.transfer.tcp import TcpTransfer

if TYPE_CHECKING:
    from gyre_engine.training.megatron import MegatronReplica

logger = logging.getLogger(__name__)

IDLE_POLL_S = 0.5
"""Longest sleep of an idle trainer; a record wakes it at once."""


def run(settings: TrainerSettings, log: Log, stop: threading.Event | None = None) -> None:
    """Train until SIGTERM or `stop`. Heavy: call it in a process of its own."""
    from gyre_engine.training.megatron import MegatronReplica
    from gyre_engine.training.shape import ModelShape

    ending = stop or stop_event()
    replica = MegatronReplica(ModelShape.of_folder(Path(settings.model_path)), ReplicaOptions(temperature=settings.temperature))
    board = Board(settings.cell)
    pen = Pen(log, board, settings.lease_s)
    follower = log.follow(CORE_TOPICS if settings.core else LEDGER_TOPICS)
    transfer = TcpTransfer(settings.transfer_host, secret=settings.secret or None)
    trainee = Trainee(settings, pen, board, replica, transfer)
    try:
        catch_up(follower, board.see, f"the trainer of {settings.cell}")
        if settings.core:
            core = _take_over(settings, log, (follower, board, pen), replica, trainee, transfer)
            _loop(follower, board, core.advance, ending)
        else:
            _loop(follower, board, lambda: trainee.advance(may_seal=True), ending)
    finally:
        follower.close()
        transfer.close()


def _loop(follower: Follower, board: Board, advance: Callable[[], bool], ending: threading.Event) -> None:
    busy = False
    while not ending.is_set():
        for record in follower.poll(0.0 if busy else IDLE_POLL_S):
            board.see(record)
        busy = advance()


def _take_over(
    settings: TrainerSettings,
    log: Log,
    reading: tuple[Follower, Board, Pen],
    replica: MegatronReplica,
    trainee: Trainee,
    transfer: Transfer,
) -> Core:
    from gyre_engine.training.optimizer import AdamW

    follower, board, pen = reading

    def write(epoch: int) -> None:
        pen.write([CoreElected(core_epoch=epoch, holder=settings.holder, cell=settings.cell)])
        read_until(follower, board.see, lambda: pen.dry, "the ledger did not give back the election that was just written")

    optimizer = AdamW(replica.parameters)
    epoch = elect(settings, write, lambda: (board.ledger.core_epoch, board.ledger.core_holder))
    version = recover(settings, log, replica, optimizer)
    trainee.holds(version)
    publisher = Publisher(pen, replica, optimizer, transfer, small_files(Path(settings.model_path)))
    publisher.export()
    core = Core(settings, epoch, pen, board, optimizer, transfer, trainee, publisher)
    before = board.ledger.published
    if before is None or before.version == version:
        publisher.publish(epoch, version, [])
    else:
        # Committed, and the old core died before it could publish: an evaluation may still sample with the version before.
        core.unpublished = []
    logger.info("core of epoch %d at step %d", epoch, version)
    return core

"""The trainer process of one cell: reads, then moves, until it is told to stop.

reads     training, micro-steps, cells; the core also trajectories, executions, model-calls
writes    training, micro-steps
promises  ends with an error, never in silence, where the ledger cannot be followed
"""

from __future__ import annotations

import logging
import signal
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
from gyre_engine.log import Follower, Log, LogUnavailable
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

    ending = stop or _stop_on_signal()
    replica = MegatronReplica(ModelShape.of_folder(Path(settings.model_path)), ReplicaOptions(temperature=settings.temperature))
    board = Board(settings.cell)
    pen = Pen(log, board, settings.lease_s)
    follower = log.follow(CORE_TOPICS if settings.core else LEDGER_TOPICS)
    transfer = TcpTransfer(settings.transfer_host, secret=settings.secret or None)
    trainee = Trainee(settings, pen, board, replica, transfer)
    try:
        _catch_up(follower, board, ending)
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


def _catch_up(follower: Follower, board: Board, ending: threading.Event) -> None:
    follower.mark_end()
    while not follower.at_end() and not ending.is_set():
        for record in follower.poll(0.2):
            board.see(record)


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
        _read_until_dry(follower, board, pen)

    optimizer = AdamW(replica.parameters)
    epoch = elect(settings, write, lambda: (board.ledger.core_epoch, board.ledger.core_holder))
    version = recover(settings, log, replica, optimizer)
    trainee.holds(version)
    publisher = Publisher(pen, replica, optimizer, transfer, small_files(Path(settings.model_path)))
    publisher.export()
    publisher.publish(epoch, version, [])
    logger.info("core of epoch %d at step %d", epoch, version)
    return Core(settings, pen, board, optimizer, transfer, trainee, publisher)


def _read_until_dry(follower: Follower, board: Board, pen: Pen, polls: int = 300) -> None:
    for _ in range(polls):
        if pen.dry:
            return
        for record in follower.poll(0.2):
            board.see(record)
    raise LogUnavailable("the training ledger did not give back what was just written to it, after 60 s")


def _stop_on_signal() -> threading.Event:
    ending = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ending.set())
    return ending

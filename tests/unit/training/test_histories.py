"""Any history of joins, claims, deaths, pauses, delays, duplicates and rival cores: each micro-step counts exactly once in every
committed step.

Hypothesis moves real members and cores over a log in memory, each of which has read as much of it as it happens to. The model is one
line: the replica adds 2**k for micro-step k, so the weights after n commits are n times the sum over all k, or something was lost
or doubled (test_trainers_protocol).
"""

from __future__ import annotations

import hashlib
import tempfile
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from consumers.trainer import core as core_module
from consumers.trainer.board import CORE_TOPICS, LEDGER_TOPICS, Board
from consumers.trainer.core import Core
from consumers.trainer.member import StepMember
from consumers.trainer.publisher import Publisher
from gyre_engine.events.cells import CellRole
from gyre_engine.events.training import CoreElected
from gyre_engine.log.election import Deposed
from gyre_engine.log.names import full_name
from gyre_engine.log.port import Raw
from gyre_engine.transfer.tcp import TcpTransfer
from tests.unit.training.cast import LEASE_S, Cast, Clock, history_of
from tests.unit.training.test_trainers_protocol import ALL, CountingOptimizer

SATELLITES = st.sampled_from(["c1", "c2"])
RECORDS = st.integers(1, 6)
"""How far a process reads before it moves: what lies beyond is late for it."""


class Reader:
    """A trainer process that reads its topics piece by piece."""

    def __init__(
        self, cast: Cast, board: Board, topics: tuple[str, ...], mover: StepMember | Core, transfer: TcpTransfer
    ) -> None:
        self.board, self.mover, self.transfer = board, mover, transfer
        self._follower = cast.log.follow(topics)

    def read(self, limit: int) -> bool:
        records = self._follower.poll(0.0, limit)
        for record in records:
            self.board.see(record)
        return bool(records)

    def advance(self) -> bool:
        return self.mover.advance() if isinstance(self.mover, Core) else self.mover.advance(may_seal=True)


class Histories(RuleBasedStateMachine):
    """Two satellites, a core, and cores that were taken for dead."""

    @initialize()
    def begin(self) -> None:
        self.clock, self.patch = Clock(), pytest.MonkeyPatch()
        self.patch.setattr(core_module, "time", self.clock)
        self.folder = tempfile.TemporaryDirectory()
        self.cast = Cast(self.folder.name, self.clock)
        self.cast.read_on()
        self.core = Reader(self.cast, Board("c0"), CORE_TOPICS, self.cast.core, self.cast.core._merging._transfer)  # type: ignore[arg-type]
        self.core.board, self.core._follower = self.cast.core_board, self.cast._core_follower
        self.rivals: list[Reader] = []
        self.members = {cell: self.member(cell) for cell in ("c1", "c2")}
        self.cast.open_step()

    def member(self, cell: str) -> Reader:
        board, _, _, transfer, member = self.cast._member(cell)
        return Reader(self.cast, board, LEDGER_TOPICS, member, transfer)

    @rule(cell=SATELLITES, records=RECORDS)
    def satellite_moves(self, cell: str, records: int) -> None:
        self.members[cell].read(records)
        self.members[cell].advance()

    @rule(cell=SATELLITES)
    def satellite_works(self, cell: str) -> None:
        for _ in range(6):
            self.members[cell].read(1000)
            self.members[cell].advance()

    @rule(records=RECORDS)
    def core_moves(self, records: int) -> None:
        self.core.read(records)
        self.core.advance()

    @rule()
    def core_works(self) -> None:
        for _ in range(6):
            self.core.read(1000)
            self.core.advance()

    @rule(cell=SATELLITES)
    def satellite_dies(self, cell: str) -> None:
        self.cast.gone(self.members[cell].transfer)
        self.members[cell] = self.member(cell)

    @rule(killed=st.booleans())
    def another_core(self, killed: bool) -> None:
        """Its predecessor is dead, or was only asleep and knows nothing of its successor."""
        if killed:
            self.cast.gone(self.core.transfer)
        else:
            self.rivals.append(self.core)
        cast = self.cast
        cast.epoch += 1
        board, pen, replica, transfer, member = cast._member("c0")
        own = replace(cast.settings("c0"), holder=f"c0-{cast.epoch}")
        pen.write([CoreElected(core_epoch=cast.epoch, holder=own.holder, cell="c0")])
        optimizer = CountingOptimizer(replica)
        publisher = Publisher(pen, replica, optimizer, transfer, {})  # type: ignore[arg-type]
        core = Core(own, cast.epoch, pen, board, optimizer, transfer, member, publisher)  # type: ignore[arg-type]
        self.core = Reader(cast, board, CORE_TOPICS, core, transfer)
        while self.core.read(1000):
            pass
        core.resume(cast.log, replica)  # type: ignore[arg-type]
        cast.core, cast.core_board, cast.optimizer = core, board, optimizer
        cast._core_follower = self.core._follower

    @precondition(lambda self: self.rivals)
    @rule(number=st.integers(0, 9), records=RECORDS)
    def a_rival_moves(self, number: int, records: int) -> None:
        """Once it has read of its successor it ends."""
        rival = self.rivals[number % len(self.rivals)]
        rival.read(records)
        try:
            rival.advance()
        except Deposed:
            self.rivals.remove(rival)

    @rule()
    def a_lease_passes(self) -> None:
        self.clock.now += LEASE_S + 0.1

    @rule(cell=SATELLITES, training=st.booleans())
    def role(self, cell: str, training: bool) -> None:
        self.cast.role(cell, CellRole.TRAINING if training else CellRole.SAMPLING)

    @rule(back=st.integers(1, 12))
    def said_again(self, back: int) -> None:
        """A record stands on the ledger twice, the second time late."""
        records = self.ledger()
        if len(records) >= back:
            raw = records[-back]
            log = self.cast.log
            log.store.put(full_name(log.prefix, log.run, "training"), "training", raw.key, raw.value)

    @rule()
    def next_step(self) -> None:
        """The core that rules opens what comes next."""
        while self.core.read(1000):
            pass
        ledger = self.core.board.ledger
        if ledger.open is None and ledger.step in self.core.board.published and ledger.core_epoch == self.cast.epoch:
            self.cast.open_step()

    def ledger(self) -> list[Raw]:
        return self.cast.log.partitions("training")[0]

    @invariant()
    def every_micro_step_counts_once(self) -> None:
        if not hasattr(self, "cast"):
            return
        for number, step in enumerate(history_of(r.event for r in self.cast.log.read("training")).steps, start=1):
            weights = np.array([number * ALL], dtype=np.float32)
            assert step.committed.step == number
            assert step.committed.weights_hash == hashlib.sha256(weights.tobytes()).hexdigest()

    def teardown(self) -> None:
        """Whatever has happened, those who live bring the run on."""
        if not hasattr(self, "cast"):
            return
        try:
            self.goes_on()
        finally:
            self.cast.close()
            self.patch.undo()
            self.folder.cleanup()

    def goes_on(self) -> None:
        for cell in self.members:
            self.cast.role(cell, CellRole.TRAINING)
        goal = self.core.board.ledger.step + 2
        for _ in range(400):
            self.clock.now += 1.0
            self.next_step()
            for reader in (*self.members.values(), self.core):
                reader.read(1000)
                reader.advance()
            if self.core.board.ledger.step >= goal:
                break
        else:
            raise AssertionError(f"the trainers came to no end: {self.core.board.ledger}")
        self.every_micro_step_counts_once()


TestHistories = Histories.TestCase
TestHistories.settings = settings(max_examples=60, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck))

"""Trainers that die and wake by hand on a log in memory: the bench of test_trainers_protocol whose core may have successors."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

from consumers.trainer.board import CORE_TOPICS
from consumers.trainer.core import Core
from consumers.trainer.publisher import Publisher
from gyre_engine.events import Event
from gyre_engine.events.cells import CellRole
from gyre_engine.events.training import (
    CoreElected,
    MicroStep,
    StepOpened,
)
from gyre_engine.training.ledger.history import History
from tests.unit.training.test_trainers_protocol import ALL, MICRO_STEPS, Bench, micro_step

S, T = CellRole.SAMPLING, CellRole.TRAINING
LEASE_S = 5.0
"""Of this bench; `cells.lease_s` in a run."""


def history_of(events: Iterable[Event]) -> History:
    """The history that these ledger events tell."""
    history = History()
    for event in events:
        history.see(event)
    return history


class Killed(BaseException):
    """Ends a trainer in the middle of a move, as kill -9 does; nobody catches it."""


@dataclass
class Clock:
    """The core's."""

    now: float = 0.0

    def monotonic(self) -> float:
        return self.now


class Cast(Bench):
    """The bench whose core may have successors; what a step holds may be another's."""

    executions = 1

    def __init__(self, folder: object, clock: Clock, checkpoint_every: int = 0) -> None:
        super().__init__(folder, checkpoint_every)
        self.clock, self.epoch = clock, 1
        for cell in ("c0", "c1", "c2"):
            self.role(cell, T)
        self.move_core()

    def next_core(self) -> None:
        """A new life of the core's trainer: elected, recovered, resumed. What the old one had registered is gone with it."""
        self.gone(self.core._merging._transfer)
        self.epoch += 1
        board, pen, replica, transfer, member = self._member("c0")
        follower = self.log.follow(CORE_TOPICS)
        optimizer = self.optimizer_of(replica)
        own = replace(self.settings("c0"), holder=f"c0-{self.epoch}")
        pen.write([CoreElected(core_epoch=self.epoch, holder=own.holder, cell="c0")])
        while records := follower.poll(0.0):
            for record in records:
                board.see(record)
        publisher = Publisher(pen, replica, optimizer, transfer, {})  # type: ignore[arg-type]
        core = Core(own, self.epoch, pen, board, optimizer, transfer, member, publisher)  # type: ignore[arg-type]
        core.resume(self.log, replica)  # type: ignore[arg-type]
        self.core_board, self.core, self.optimizer, self._core_follower = board, core, optimizer, follower

    def open_step(self) -> None:
        """The next attempt at the next step, as the core that rules opens it."""
        self.read_on()
        ledger = self.core_board.ledger
        step, attempt = ledger.step + 1, ledger.attempts + 1
        micro_steps = self.work(step)
        opened = StepOpened(
            core_epoch=self.epoch, step=step, attempt=attempt, weights_hash=self.core._publisher.weights_hash, groups=(f"g{step}",),
            scores=(), micro_steps=tuple(e.micro_step for e in micro_steps), executions=self.executions, divisor=self.executions,
            staleness_max=0, staleness_mean=0.0,
        )  # fmt: skip
        self.log.append_all([*micro_steps, opened] if attempt == 1 else [opened])

    def work(self, step: int) -> list[MicroStep]:
        return [micro_step(step, k) for k in range(MICRO_STEPS)]

    def read_on(self) -> None:
        while records := self._core_follower.poll(0.0):
            for record in records:
                self.core_board.see(record)

    def finish(self, step: int) -> None:
        """Move all who live until the step is committed, published and stored, opening it again where a new core voided it."""

        def reopened() -> bool:
            self.read_on()
            ledger = self.core_board.ledger
            if ledger.open is None and ledger.step < step and ledger.step in self.core_board.published:
                self.open_step()
            return False

        done = lambda: self.committed == step and step in self.core_board.published and not self.core.owes  # noqa: E731
        self.until(done, reopened, *self.satellites.values(), self.move_core)

    def kill(self, cell: str) -> None:
        """Its memory goes with it; a new life begins."""
        self.gone(self.satellites[cell].transfer)  # type: ignore[attr-defined]
        self.satellites[cell] = self.satellite(cell)

    def gone(self, transfer: Any) -> None:
        self.transfers.remove(transfer)
        transfer.close()

    def move(self, cell: str, until: type) -> None:
        """A satellite alone, until it has said this of the step that is open."""
        self.until(lambda: self.said(until, cell), self.satellites[cell])

    def said(self, kind: type, cell: str = "") -> bool:
        """Whether this stands on the ledger about the step after the last that the core committed, of this cell or of any."""
        step = self.core_board.ledger.step + 1
        return any(e.step == step and cell in ("", e.cell) for e in self.events(kind))  # type: ignore[attr-defined]

    def check(self, steps: int) -> None:
        """Each micro-step of each committed step is in exactly one merged buffer, and the weights are the sum of all."""
        history = history_of(record.event for record in self.log.read("training"))
        assert [step.committed.step for step in history.steps] == list(range(1, steps + 1))
        for step in history.steps:
            merged = [m for work in step.works for m in work.micro_steps]
            assert sorted(merged) == sorted(step.opened.micro_steps)
        assert float(self.optimizer._replica.weights[0]) == steps * ALL

    def commits_behind_a_successor(self) -> tuple[Core, Callable[[], None]]:
        """A core that had merged commits once another is elected; the old core, and what makes it read on."""
        self.open_step()
        old, board, follower = self.core, self.core_board, self._core_follower
        export = old._publisher.export

        def paused() -> str:
            self.next_core()
            return export()

        def wake() -> None:
            for record in follower.poll(0.0):
                board.see(record)

        old._publisher.export = paused  # type: ignore[method-assign]
        self.until(lambda: self.core is not old, *self.satellites.values(), self.move_core)
        return old, wake

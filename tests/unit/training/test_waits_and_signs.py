"""What trainers say while they wait, that a slow member is none that is dead, and that a reader which never ends kills nobody."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from consumers.trainer import core as core_module
from consumers.trainer import member as member_module
from consumers.trainer.settings import TrainerSettings
from gyre_engine.batching import PackedMicroStep
from gyre_engine.events.cells import CellRole, SchedulerElected
from gyre_engine.events.training import Claimed, MemberReleased, Sealed, StepOpened, Waiting
from gyre_engine.losses.config import LossConfig
from gyre_engine.training.metrics import StepMetrics
from tests.unit.training.cast import LEASE_S, Cast, Clock
from tests.unit.training.test_publisher import Held
from tests.unit.training.test_trainers_protocol import MICRO_STEPS, CountingReplica, admitted, begin

STRAGGLER_S = 30.0


class Slow(CountingReplica):
    """Every micro-step takes nearly the lease."""

    clock: Clock

    def accumulate(self, step: PackedMicroStep, loss: LossConfig) -> StepMetrics:
        self.clock.now += 0.8 * LEASE_S
        return super().accumulate(step, loss)


Staged = Callable[..., Cast]


@pytest.fixture
def staged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Staged]:
    clock, made = Clock(), []
    monkeypatch.setattr(core_module, "time", clock)
    monkeypatch.setattr(member_module, "time", clock)

    def make(kind: type[Cast] = Cast) -> Cast:
        made.append(kind(tmp_path / str(len(made)), clock))
        return made[-1]

    yield make
    for cast in made:
        cast.close()


def waits(cast: Cast) -> list[tuple[str, ...]]:
    return [event.waiting_for for event in cast.events(Waiting)]  # type: ignore[attr-defined]


def look(cast: Cast, seconds: float = STRAGGLER_S) -> list[tuple[str, ...]]:
    """What is said after the core has found nothing to do for so long, beyond what was said before."""
    before = len(waits(cast))
    for _ in range(20):
        cast.move_core()
    cast.clock.now += seconds
    for _ in range(20):
        cast.move_core()
    return waits(cast)[before:]


def test_a_batch_that_may_not_begin_yet_names_what_keeps_it(staged: Staged) -> None:
    """First the role, then the burst; each is said once in `straggler_s`."""
    cast = staged()
    cast.role("c0", CellRole.SAMPLING)
    cast.log.append_all([SchedulerElected(epoch=1, holder="s"), admitted(0)])
    assert look(cast) == [("c0 to be given the role of training",)]
    assert look(cast, STRAGGLER_S / 2) == []
    cast.role("c0", CellRole.TRAINING)
    assert look(cast) == [("the scheduler to begin the burst behind step 0",)]
    cast.log.append_all([begin(0, epoch=1)])
    cast.until(lambda: bool(cast.events(StepOpened)), cast.move_core)


def test_a_member_that_does_not_seal_is_named(staged: Staged) -> None:
    """It has two; the lease would end long after."""

    class Patient(Cast):
        def settings(self, cell: str) -> TrainerSettings:
            return replace(super().settings(cell), lease_s=1000.0)

    cast = staged(Patient)
    cast.open_step()
    cast.move("c1", until=Claimed)
    assert look(cast) == [("c1 to seal 2 micro-steps",)]
    assert look(cast) == [("c1 to seal 2 micro-steps",)]
    cast.finish(1)
    cast.check(1)


@pytest.mark.parametrize("cell", ["c0", "c1"])
def test_a_micro_step_that_the_log_does_not_bring_is_named(staged: Staged, cell: str, caplog: pytest.LogCaptureFixture) -> None:
    """By the core on the ledger, by a satellite in its log."""
    cast = staged()
    cast.read_on()
    opened = StepOpened(
        core_epoch=1, step=1, attempt=1, weights_hash=cast.core._publisher.weights_hash, groups=("g",), scores=(),
        micro_steps=("lost",), executions=1, divisor=1, staleness_max=0, staleness_mean=0.0,
    )  # fmt: skip
    cast.log.append_all([opened])
    if cell == "c0":
        assert look(cast) == [("micro-step lost to be read",)]
        return
    with caplog.at_level(logging.WARNING):
        for seconds in (0.0, STRAGGLER_S - 1, 1.0, STRAGGLER_S - 1):
            cast.clock.now += seconds
            for _ in range(9):
                cast.satellites["c1"]()
    said = [r.getMessage() for r in caplog.records]
    assert said == ["c1 waits for micro-step lost, which it is to compute and has not read"]


def test_a_member_whose_micro_steps_take_nearly_the_lease_is_not_released(staged: Staged) -> None:
    """Two were claimed at once and nothing is left to claim: each beginning is a sign."""

    class Hasty(Cast):
        replica_of = Slow

        def settings(self, cell: str) -> TrainerSettings:
            return replace(super().settings(cell), claim_ahead=MICRO_STEPS)

    cast = staged(Hasty)
    Slow.clock = cast.clock
    cast.open_step()
    cast.move("c1", until=Claimed)
    while not cast.events(Sealed):
        cast.satellites["c1"]()
        cast.move_core()
    cast.finish(1)
    cast.check(1)
    assert cast.events(MemberReleased) == []
    seals = {seal.cell: len(seal.micro_steps) for seal in cast.events(Sealed)}  # type: ignore[attr-defined]
    assert seals.pop("c1") == MICRO_STEPS and not any(seals.values())


def test_a_buffer_that_somebody_still_reads_when_its_step_is_over_kills_nobody(staged: Staged) -> None:
    """It stays, and goes when the next one goes."""

    class Reading(Cast):
        held: Held

        def _member(self, cell: str):  # type: ignore[no-untyped-def]
            board, pen, replica, transfer, member = super()._member(cell)
            if cell == "c1":
                self.gone(transfer)
                self.held = transfer = member._transfer = Held()
                self.transfers.append(transfer)
            return board, pen, replica, transfer, member

    cast = staged(Reading)
    for step in (1, 2, 3):
        cast.held.stuck = step < 3
        cast.open_step()
        cast.move("c1", until=Sealed)
        cast.finish(step)
        cast.satellites["c1"]()
    cast.check(3)
    sealed = [s.descriptor for s in cast.events(Sealed) if s.cell == "c1"]  # type: ignore[attr-defined]
    assert [d.to_bytes() for d in cast.held.ended] == sealed and len(sealed) == 3

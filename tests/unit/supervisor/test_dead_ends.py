"""A process that ends for a reason that another start cannot mend is not started again, and its reason is told whole."""

from __future__ import annotations

from pathlib import Path

import pytest

from gyre_engine.batching.assemble import AssemblyError
from gyre_engine.batching.microstep import InvalidMicroStep
from gyre_engine.batching.work import InvalidWork
from gyre_engine.dead_end import DEAD_END, DeadEnd
from gyre_engine.events import Recorded
from gyre_engine.events.cells import SchedulerElected
from gyre_engine.experts import BadRouting
from gyre_engine.log import UnreadableEvent
from gyre_engine.log.consumer import Consumer, HandlingFailed, NeverHandled, Reading
from gyre_engine.log.memory import MemoryLog
from gyre_engine.losses.names import LossError, UnusableLoss
from gyre_engine.sampling.port import EngineFailed
from gyre_engine.training.checkpoint import CheckpointError, OfSomethingElse
from gyre_engine.training.ledger.fold import LedgerBroken
from gyre_engine.training.replica import NonFiniteGradient, TrainingError, Untrainable
from infra.supervisor.charge import Charge
from infra.supervisor.logs import Logs
from infra.supervisor.spec import ProcessSpec, RestartPolicy, State
from infra.supervisor.target import run_target

EX_CONFIG = 78
"""sysexits.h"""
LONG = "step 2: " + "so it is " * 100 + "and no more"


def refuse(what: str) -> None:
    """What the processes of this file do."""
    if what == "another try":
        raise TrainingError(LONG)
    raise Untrainable(LONG)


def test_the_status_is_that_of_sysexits_for_a_configuration() -> None:
    assert DEAD_END == EX_CONFIG


@pytest.mark.parametrize(("what", "status"), [("no other try", EX_CONFIG), ("another try", 1)])
def test_a_process_says_by_its_status_whether_another_start_would_help(
    what: str, status: int, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run_target(f"{__name__}:refuse", {"what": what}) == status
    assert capfd.readouterr().err.rstrip().endswith(LONG)


CERTAIN = (
    Untrainable, OfSomethingElse, UnreadableEvent, LedgerBroken, AssemblyError, InvalidWork, InvalidMicroStep, BadRouting,
    UnusableLoss, NeverHandled,
)  # fmt: skip


def test_what_is_certain_to_come_again_and_what_is_not() -> None:
    assert issubclass(Untrainable, TrainingError) and issubclass(OfSomethingElse, CheckpointError)
    assert issubclass(UnusableLoss, LossError) and issubclass(NeverHandled, HandlingFailed)
    assert all(issubclass(kind, DeadEnd) for kind in CERTAIN)
    others = (TrainingError, NonFiniteGradient, CheckpointError, LossError, HandlingFailed, EngineFailed)
    assert not any(issubclass(kind, DeadEnd) for kind in others)


class Refusing(Consumer):
    """Refuses what it reads."""

    name, topics = "refusing", ("commands",)

    def __init__(self, log: MemoryLog, what: str) -> None:
        super().__init__(log, Reading(poll_seconds=0.01))
        self.what = what

    def handle(self, record: Recorded) -> None:
        refuse(self.what)


def consume(what: str) -> None:
    """What a process does that refuses an event."""
    log = MemoryLog()
    log.append(SchedulerElected(epoch=1, holder="s")).result()
    Refusing(log, what).run()


@pytest.mark.parametrize(
    ("what", "status", "words"), [("no other try", EX_CONFIG, LONG), ("another try", 1, f"TrainingError: {LONG}")]
)
def test_an_event_that_cannot_be_handled_says_so_too_and_what_was_wrong_with_it(
    what: str, status: int, words: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run_target(f"{__name__}:consume", {"what": what}) == status
    logs = Logs(tmp_path)
    logs.file("c").write_text(capfd.readouterr().err)
    said = logs.last_words("c")
    assert said.startswith("refusing could not handle scheduler-elected (commands, partition 0, offset 0, id ")
    assert said.endswith(f"): {words}")


def test_what_a_process_made_of_a_dead_end_is_for_it_to_say() -> None:
    """An engine's answer may hold a record that fits no model, and the next one need not."""
    assert run_target(f"{__name__}:ask_an_engine", {}) == 1


def ask_an_engine() -> None:
    """What a process does whose engine answers nonsense."""
    try:
        raise BadRouting("2 bytes a token")
    except BadRouting as error:
        raise EngineFailed(f"request 1: {error}") from error


@pytest.mark.parametrize(("status", "restarts"), [(EX_CONFIG, 0), (1, 2)])
def test_it_is_given_up_at_once_and_any_other_end_costs_the_budget(status: int, restarts: int) -> None:
    charge = Charge(ProcessSpec("c", target="a:b", restart=RestartPolicy(limit=2)))
    while charge.state is not State.FAILED:
        charge.settle(status, 0.0)
    assert (charge.restarts, charge.dead_end) == (restarts, status == EX_CONFIG)


def test_the_status_of_another_program_means_what_that_says() -> None:
    charge = Charge(ProcessSpec("c", argv=("/bin/false",)))
    assert charge.settle(EX_CONFIG, 0.0) is not None
    assert charge.state is State.WAITING


def test_a_process_that_was_told_to_stop_is_stopped_whatever_its_status() -> None:
    charge = Charge(ProcessSpec("c", target="a:b"))
    charge.retire(0.0)
    charge.settle(EX_CONFIG, 0.0)
    assert charge.state is State.STOPPED


@pytest.mark.parametrize(
    ("last", "said"),
    [
        (f"gyre_engine.training.replica.Untrainable: {LONG}", LONG),
        ("Untrainable: one: two", "one: two"),
        ("it is: not an exception", "it is: not an exception"),
    ],
)
def test_last_words_are_whole_and_without_the_name_of_a_class(tmp_path: Path, last: str, said: str) -> None:
    logs = Logs(tmp_path)
    logs.file("c").write_text(f"INFO begins\nTraceback (most recent call last):\n  File ...\n{last}\n")
    assert logs.last_words("c") == said

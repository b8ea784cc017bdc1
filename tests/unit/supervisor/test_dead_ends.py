"""A process that ends for a reason that another start cannot mend is not started again, and its reason is told whole."""

from __future__ import annotations

from pathlib import Path

import pytest

from gyre_engine.dead_end import DEAD_END, DeadEnd
from gyre_engine.log import UnreadableEvent
from gyre_engine.training.checkpoint import CheckpointError, OfSomethingElse
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


def test_what_is_certain_to_come_again_and_what_is_not() -> None:
    assert issubclass(Untrainable, TrainingError) and issubclass(OfSomethingElse, CheckpointError)
    assert all(issubclass(kind, DeadEnd) for kind in (Untrainable, OfSomethingElse, UnreadableEvent))
    assert not any(issubclass(kind, DeadEnd) for kind in (TrainingError, NonFiniteGradient, CheckpointError))


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

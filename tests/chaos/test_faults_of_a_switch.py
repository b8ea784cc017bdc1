"""kill -9 and SIGSTOP in the states of a switch, on a run of real processes: each is recognised on the log, then the signal goes out.

Exactly in the state, on a log in memory, they are tested in tests/unit; here several follow each other in one run, and the end is that
of docs/faults.md for all of them together.
"""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from gyre_engine.events import Event
from gyre_engine.events.calls import ModelCall
from gyre_engine.events.cells import CellLost, CellStarted, LifeChanged, LifeState, SwitchRole
from gyre_engine.events.training import Claimed, MemberJoined, MemberReleased, Sealed, StepCommitted, StepOpened
from tests.chaos.live import Ear, live
from tests.chaos.test_kills import assert_as_if_nobody_had_been_killed
from tests.e2e.small_run import Gyre, settings, write_experiment

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

CORE = "cell-0"
LEASE_S, SILENCE_S = 5, 15


@dataclass(frozen=True, slots=True)
class Fault:
    """`hits`: the process to kill once an event says that it is where it is to die."""

    name: str
    hits: Callable[[Event], str | None]


def agent_in(state: LifeState) -> Callable[[Event], str | None]:
    def hits(event: Event) -> str | None:
        there = isinstance(event, LifeChanged) and event.after is state and event.cell != CORE
        return f"{event.cell}-agent" if there else None  # type: ignore[attr-defined]

    return hits


def trainer_at(kind: type[Event]) -> Callable[[Event], str | None]:
    def hits(event: Event) -> str | None:
        return f"{event.cell}-trainer" if isinstance(event, kind) and event.cell != CORE else None  # type: ignore[attr-defined]

    return hits


def at(kind: type[Event], name: str) -> Callable[[Event], str | None]:
    return lambda event: name if isinstance(event, kind) else None


def engine_in(state: LifeState) -> Callable[[Event], str | None]:
    def hits(event: Event) -> str | None:
        agent = agent_in(state)(event)
        return agent.replace("-agent", "-engine") if agent else None

    return hits


KILLS = (
    Fault("a satellite drains", agent_in(LifeState.DRAINING)),
    Fault("a satellite joins", trainer_at(MemberJoined)),
    Fault("the core opens a step", at(StepOpened, f"{CORE}-trainer")),
    Fault("a satellite computes", trainer_at(Claimed)),
    Fault("a call is under way", at(ModelCall, "proxy")),
    Fault("a satellite's sealed buffer is read", trainer_at(Sealed)),
    Fault("the scheduler commands", at(SwitchRole, "scheduler")),
    Fault("a satellite hands over its KV", agent_in(LifeState.EXPORTING)),
    Fault("a satellite gets weights", agent_in(LifeState.REFRESHING)),
    Fault("an engine samples", engine_in(LifeState.SAMPLING)),
    Fault("the core commits", at(StepCommitted, f"{CORE}-trainer")),
)


def test_each_state_of_a_switch_survives_kill_9(tmp_path: Path) -> None:
    """Under `colocate` every cell switches twice a burst, and none leaves a step that is open: it is the trainers that seal. Between
    two kills a step is committed; some states are not met in every step, so that the last kill fell in step 12 or in step 17."""
    steps = 3 * len(KILLS)
    program, given = Gyre(tmp_path), settings(
        f"run.steps={steps}", "schedule.policy='colocate'", f"cells.lease_s={LEASE_S}", "run.checkpoint_every=4",
        "batch.micro_step_tokens=256",
    )  # fmt: skip
    with live(program, "run", str(write_experiment(tmp_path)), *given) as run:
        with run.log() as log:
            ear = Ear(run, log)
            for fault in KILLS:
                run.signal(ear.until(fault.hits, fault.name), signal.SIGKILL)
                ear.until(committed, f"a step after: {fault.name}")
        run.process.wait(300)
        assert run.process.returncode == 0, run.output()
    assert_as_if_nobody_had_been_killed(program, steps)
    assert_agents_saw_nothing(program)


def committed(event: Event) -> bool | None:
    return True if isinstance(event, StepCommitted) else None


def test_who_sleeps_in_a_switch_is_passed_over_and_comes_back(tmp_path: Path) -> None:
    """SIGSTOP of a computing trainer until its lease is over, of an agent and of an engine until their cell is lost (an agent whose
    engine does not answer waits for it, and says nothing); each then wakes (SIGCONT)."""
    steps = 20
    program, given = Gyre(tmp_path), settings(
        f"run.steps={steps}", "schedule.policy='colocate'", f"cells.lease_s={LEASE_S}", f"schedule.silence_s={SILENCE_S}",
        "batch.micro_step_tokens=256",
    )  # fmt: skip
    with live(program, "run", str(write_experiment(tmp_path)), *given) as run:
        with run.log() as log:
            ear = Ear(run, log)
            ear.until(committed, "the first step")
            asleep(ear, trainer_at(Claimed), MemberReleased)
            asleep(ear, agent_in(LifeState.SAMPLING), CellLost)
            asleep(ear, engine_in(LifeState.SAMPLING), CellLost)
        run.process.wait(400)
        assert run.process.returncode == 0, run.output()
    assert_as_if_nobody_had_been_killed(program, steps)
    assert_agents_saw_nothing(program)


def asleep(ear: Ear, hits: Callable[[Event], str | None], missed: type[Event]) -> None:
    """Stop a process where `hits` says; wake it when the log says that it is missed and a step went on without it; then its cell
    changes again, and a step is committed."""
    name = ear.until(hits, "the state to sleep in")
    cell = name.rpartition("-")[0]

    def of_it(kinds: tuple[type[Event], ...]) -> Callable[[Event], bool | None]:
        return lambda event: (isinstance(event, kinds) and event.cell == cell) or None  # type: ignore[attr-defined]

    pid = ear.run.signal(name, signal.SIGSTOP)
    try:
        ear.until(of_it((missed,)), f"{name} being missed")
        ear.until(committed, f"a step without {name}")
    finally:
        os.kill(pid, signal.SIGCONT)
    assert ear.run.pid(name) == pid, "it is the same process that goes on"
    ear.until(of_it((LifeChanged, CellStarted)), f"{cell} going on")
    ear.until(committed, f"a step after {name} woke")


def assert_agents_saw_nothing(program: Gyre) -> None:
    """No call failed, no attempt was lost: what was interrupted went on. Every execution that was dispatched has its one end."""
    calls = program.tail("model-calls")
    assert sum(int(str(e["errors"])) for e in calls if e["type"] == "execution-closed") == 0
    executions = program.tail("executions")
    dispatched = [e["execution"] for e in executions if e["type"] == "dispatched"]
    ends = Counter(e["execution"] for e in executions if e["type"] in ("finished", "discarded"))
    assert sorted(map(str, ends)) == sorted(map(str, dispatched)) and set(ends.values()) == {1}
    assert {e["reason"] for e in executions if e["type"] == "discarded"} <= {"cancelled"}
    assert len(dispatched) == len({str(name).rpartition(".")[0] for name in dispatched})

"""The scheduler on a log in memory: it elects itself, commands one switch at a time, and ends where another one rules."""

import dataclasses
import threading

import pytest

from consumers.scheduler.process import SchedulerSettings, decide, run
from consumers.scheduler.view import View
from gyre_engine.events import Event
from gyre_engine.events.cells import CellRole, CellStarted, RoleChanged, SchedulerElected, SwitchRole, WaterLevelChanged
from gyre_engine.events.training import GroupAdmitted
from gyre_engine.log.election import Deposed
from gyre_engine.log.memory import MemoryLog, MemoryStore
from gyre_engine.scheduling.classes import ClassPlan
from gyre_engine.scheduling.cluster import Decision, Switch
from gyre_engine.scheduling.policies import POLICIES

PLAN = ClassPlan(batch=1, mu=1, phi=0, steps=3)
SETTINGS = SchedulerSettings(holder="me", cells=("c0", "c1"), plan=PLAN, group_size=4)


def started(position: int) -> CellStarted:
    return CellStarted(
        cell=f"c{position}", position=position, incarnation="i", engine="native", engine_url="", capacity=8,
        role=CellRole.SAMPLING, weight_version=0,
    )  # fmt: skip


def water(level: int) -> WaterLevelChanged:
    return WaterLevelChanged(
        dispatched=level, started=level, terminated=0, level=level, capacity_per_cell=8, sampling_capacity=16,
        sampling_cells=("c0", "c1"), training_cells=(), switching_cells=(), ready_groups=1, committed_step=0,
    )  # fmt: skip


def admitted() -> GroupAdmitted:
    return GroupAdmitted(
        group="g0", group_number=0, class_number=0, query="q", dispatched_version=0, mean=0.0, deviation=1.0, trains=True,
        reason="", executions=(), left_out=(),
    )  # fmt: skip


def view_of(*events: Event) -> View:
    log = MemoryLog(MemoryStore(), "r")
    log.append_all(events)
    view, follower = View(PLAN, 4), log.follow(("cells", "water-level", "trajectories", "commands", "training"))
    while records := follower.poll(0.0):
        for record in records:
            view.see(record)
    return view


def words(decision: Decision | None) -> tuple[str, CellRole] | None:
    return (decision.cell, decision.to) if isinstance(decision, Switch) else None


def test_nothing_is_commanded_before_every_cell_has_started() -> None:
    assert decide(view_of(started(0), water(0), admitted()), SETTINGS) is None
    view = view_of(started(0), started(1), water(0), admitted())
    assert words(decide(view, SETTINGS)) == ("c0", CellRole.TRAINING)


def test_the_policy_is_the_one_that_the_settings_name() -> None:
    """Nothing is ready: only the fixed split moves a cell, and as many as its option says."""
    view = view_of(started(0), started(1), water(0))
    named = [dataclasses.replace(SETTINGS, policy=name) for name in POLICIES]
    assert [words(decide(view, s)) for s in named] == [None, ("c0", CellRole.TRAINING), None]


def test_a_commanded_cell_counts_as_switching_until_it_says_that_it_has_switched() -> None:
    command = SwitchRole(epoch=1, number=1, cell="c0", to=CellRole.TRAINING, reason="", water_level=0, sampling_capacity=16)
    before = [started(0), started(1), water(0), admitted(), SchedulerElected(epoch=1, holder="me"), command]
    assert view_of(*before).cluster().switching
    done = RoleChanged(cell="c0", incarnation="i", role=CellRole.TRAINING, command_epoch=1, command_number=1)
    assert not view_of(*before, done).cluster().switching


def test_it_commands_under_its_own_epoch_and_ends_when_another_rules() -> None:
    log = MemoryLog(MemoryStore(), "r")
    log.append_all([SchedulerElected(epoch=4, holder="old"), started(0), started(1), water(3), admitted()])
    ended: list[BaseException] = []

    def serve() -> None:
        try:
            run(SETTINGS, log, threading.Event())
        except Deposed as error:
            ended.append(error)

    thread = threading.Thread(target=serve)
    thread.start()
    follower = log.follow(["commands"])
    commands: list[SwitchRole] = []
    for _ in range(100):
        commands += [r.event for r in follower.poll(0.1) if isinstance(r.event, SwitchRole)]
        if commands:
            break
    assert [(c.epoch, c.number, c.cell, c.to) for c in commands] == [(5, 1, "c0", CellRole.TRAINING)]
    log.append_all([SchedulerElected(epoch=9, holder="other")])
    thread.join(10.0)
    assert not thread.is_alive()
    with pytest.raises(Deposed, match="other rules with epoch 9"):
        raise ended[0]

"""The scheduler process: reads, asks the policy, commands.

reads     water-level, cells, commands, trajectories, training
writes    commands
promises  commands only under an epoch that it has read back as the highest; one command at a time
"""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass
from functools import partial

from consumers.scheduler.view import TOPICS, View
from gyre_engine.events.cells import SchedulerElected, SwitchRole
from gyre_engine.log import Follower, Log
from gyre_engine.log.catching_up import catch_up, read_until
from gyre_engine.scheduling.classes import ClassPlan
from gyre_engine.scheduling.elastic import Switch, next_switch
from gyre_engine.signals import stop_event

logger = logging.getLogger(__name__)

IDLE_POLL_S = 1.0


@dataclass(frozen=True, slots=True)
class SchedulerSettings:
    """`cells`: names in the fixed order; nothing is commanded before all of them have started."""

    holder: str
    cells: tuple[str, ...]
    plan: ClassPlan
    group_size: int
    slack: float = 1.0


class Deposed(RuntimeError):
    """Another scheduler has a higher epoch; this one must end."""


def run(settings: SchedulerSettings, log: Log, stop: threading.Event | None = None) -> None:
    """Command until SIGTERM or `stop`."""
    ending = stop or stop_event()
    view = View(settings.plan, settings.group_size)
    follower = log.follow(TOPICS)
    try:
        epoch = _elect(settings, log, view, follower)
        while not ending.is_set():
            for record in follower.poll(IDLE_POLL_S):
                view.see(record)
            if view.epoch != epoch:
                raise Deposed(f"scheduler {settings.holder} (epoch {epoch}): {view.holder} rules with epoch {view.epoch}")
            _command(settings, log, view, follower)
    finally:
        follower.close()


def decide(view: View, settings: SchedulerSettings) -> Switch | None:
    """The policy's answer, once every cell has started."""
    if set(settings.cells) - set(view.cells):
        return None
    return next_switch(view.cluster(), view.demand(), settings.slack)


def _command(settings: SchedulerSettings, log: Log, view: View, follower: Follower) -> None:
    switch = decide(view, settings)
    if switch is None:
        return
    cluster, demand = view.cluster(), view.demand()
    command = SwitchRole(
        epoch=view.epoch, number=view.number + 1, cell=switch.cell, to=switch.to, reason=switch.reason,
        water_level=demand.water_level, sampling_capacity=cluster.sampling_capacity,
    )  # fmt: skip
    logger.info("%s to %s: %s", switch.cell, switch.to.value, switch.reason)
    log.append_all([command])
    read_until(
        follower, view.see, lambda: view.commanded.get(switch.cell) == command or view.epoch != command.epoch,
        "the topic commands did not give back the command that was just written",
    )  # fmt: skip


def _elect(settings: SchedulerSettings, log: Log, view: View, follower: Follower) -> int:
    catch_up(follower, view.see, "the scheduler")
    for _ in range(10):
        mine = view.epoch + 1
        log.append_all([SchedulerElected(epoch=mine, holder=settings.holder)])
        read_until(follower, view.see, partial(_rules, view, mine), "the topic commands did not give back the election")
        if (view.epoch, view.holder) == (mine, settings.holder):
            return mine
    raise Deposed(f"scheduler {settings.holder}: other schedulers keep winning; is more than one configured?")


def _rules(view: View, epoch: int) -> bool:
    return view.epoch >= epoch

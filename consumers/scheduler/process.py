"""The scheduler process: reads, asks the policy, commands.

reads     executions, water-level, cells, commands, trajectories, training
writes    commands
promises  commands only under an epoch that it has read back as the highest; one command at a time
"""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass

from consumers.scheduler.view import TOPICS, View
from gyre_engine.events import Recorded
from gyre_engine.events.cells import SchedulerElected, SwitchRole
from gyre_engine.log import Log
from gyre_engine.log.consumer import Consumer, Reading, Report, serve
from gyre_engine.log.election import Deposed, win
from gyre_engine.scheduling.classes import ClassPlan
from gyre_engine.scheduling.elastic import Switch, next_switch

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


def run(settings: SchedulerSettings, log: Log, stop: threading.Event | None = None, report: Report | None = None) -> None:
    """Command until SIGTERM or `stop`. Raises Deposed where another scheduler rules."""
    serve(Scheduler(settings, log, report), stop)


class Scheduler(Consumer):
    """Folds what it reads into a View; once it has read what stands there, it wins an epoch and commands."""

    name = "scheduler"
    topics = TOPICS

    def __init__(self, settings: SchedulerSettings, log: Log, report: Report | None = None) -> None:
        super().__init__(log, Reading(poll_seconds=IDLE_POLL_S), report)
        self.view = View(settings.plan, settings.group_size)
        self._settings = settings
        self._epoch = 0

    def group(self) -> None:
        """None: the view is folded from the beginning."""

    def handle(self, record: Recorded) -> None:
        self.view.see(record)

    def caught_up(self) -> None:
        """Win an epoch."""
        self._epoch = self._elect()

    def idle(self) -> None:
        """Command what the policy says. Raises Deposed."""
        if not self._epoch:
            return
        fleet, holder = self.view.fleet, self._settings.holder
        if fleet.epoch != self._epoch:
            raise Deposed(f"scheduler {holder} (epoch {self._epoch}): {fleet.holder} rules with epoch {fleet.epoch}")
        switch = decide(self.view, self._settings)
        if switch is not None:
            self._command(switch)

    def _command(self, switch: Switch) -> None:
        view, demand = self.view, self.view.demand()
        command = SwitchRole(
            epoch=self._epoch, number=view.fleet.number + 1, cell=switch.cell, to=switch.to, reason=switch.reason,
            water_level=demand.water_level, sampling_capacity=view.cluster().sampling_capacity,
        )  # fmt: skip
        logger.info("%s to %s: %s", switch.cell, switch.to.value, switch.reason)
        self.log.append_all([command])
        self.read_on(
            lambda: view.fleet.commands.get(switch.cell) == command or view.fleet.epoch != command.epoch,
            "the topic commands did not give back the command that was just written",
        )

    def _elect(self) -> int:
        return win(self._settings.holder, self._propose, lambda: (self.view.fleet.epoch, self.view.fleet.holder))

    def _propose(self, epoch: int) -> None:
        self.log.append_all([SchedulerElected(epoch=epoch, holder=self._settings.holder)])
        self.read_on(lambda: self.view.fleet.epoch >= epoch, "the topic commands did not give back the election")


def decide(view: View, settings: SchedulerSettings) -> Switch | None:
    """The policy's answer, once every cell has started."""
    if set(settings.cells) - set(view.fleet.cells):
        return None
    return next_switch(view.cluster(), view.demand(), settings.slack)

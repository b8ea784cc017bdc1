"""The scheduler process: reads, asks the policy, commands.

reads     executions, water-level, cells, commands, trajectories, training
writes    commands
promises  commands only under an epoch that it has read back as the highest; one command at a time; a cell that falls silent is said to
          be lost, so that nobody waits for it
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from consumers.scheduler.view import TOPICS, View
from gyre_engine.events import Event, Recorded
from gyre_engine.events.cells import CellLost, SchedulerElected
from gyre_engine.log import Log
from gyre_engine.log.consumer import Consumer, Reading, Report, serve
from gyre_engine.log.election import Deposed, win
from gyre_engine.scheduling.classes import ClassPlan
from gyre_engine.scheduling.cluster import Decision
from gyre_engine.scheduling.life import LifeLimits
from gyre_engine.scheduling.moving import Moving
from gyre_engine.scheduling.policies import POLICIES, PolicySettings
from gyre_engine.scheduling.silence import Silence

logger = logging.getLogger(__name__)

IDLE_POLL_S = 1.0


@dataclass(frozen=True, slots=True)
class SchedulerSettings:
    """`cells`: all names; nothing is commanded before all of them have started. `policy`: one of POLICIES.

    silence_s: how long a cell may say nothing
    """

    holder: str
    cells: tuple[str, ...]
    plan: ClassPlan
    group_size: int
    policy: str = "paper"
    kv: str = "auto"
    across_versions: bool = False
    options: PolicySettings = field(default_factory=PolicySettings)
    silence_s: float = 120.0


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
        self._moving = Moving(settings.kv, settings.across_versions)
        self._silence = Silence(settings.silence_s, LifeLimits().starting)
        self._epoch = 0

    def group(self) -> None:
        """None: the view is folded from the beginning."""

    def handle(self, record: Recorded) -> None:
        self.view.see(record)
        self._moving.see(record.event, self.view.fleet.epoch)

    def caught_up(self) -> None:
        """Win an epoch."""
        self._epoch = self._elect()

    def idle(self) -> None:
        """Say where interrupted executions go on, or that a cell is lost, else command what the policy says. Raises Deposed."""
        if not self._epoch:
            return
        self._silence.listen(self.view.fleet, self._settings.cells, time.monotonic())
        fleet, holder = self.view.fleet, self._settings.holder
        if fleet.epoch != self._epoch:
            raise Deposed(f"scheduler {holder} (epoch {self._epoch}): {fleet.holder} rules with epoch {fleet.epoch}")
        moves = self._moving.due(fleet, self._epoch, self.view.number + 1)
        if moves is not None:
            self._write(moves, lambda: not self._moving.waits(moves.source))
        elif (lost := self._lost()) is not None:
            logger.warning(
                "%s says nothing since %.0f s: it counts as gone until it speaks again", lost.cell, lost.silent_us / 1e6
            )
            self._write(lost, lambda: self.view.fleet.losses.get(lost.cell) == lost)
        elif (decision := decide(self.view, self._settings)) is not None:
            command = self.view.command(decision, self._epoch)
            logger.info("%s", decision)
            self._write(command, lambda: self.view.has_read(command))

    def _lost(self) -> CellLost | None:
        """The next cell that has fallen silent."""
        fleet = self.view.fleet
        for cell, silent_s in self._silence.fallen(fleet).items():
            state = fleet.cells.get(cell)
            heard = (state.incarnation, state.words) if state else ("", 0)
            return CellLost(
                epoch=self._epoch, number=self.view.number + 1, cell=cell, incarnation=heard[0], words=heard[1],
                silent_us=int(silent_s * 1e6),
            )  # fmt: skip
        return None

    def _write(self, command: Event, read_back: Callable[[], bool]) -> None:
        view, epoch = self.view, self._epoch
        self.log.append_all([command])
        self.read_on(
            lambda: read_back() or view.fleet.epoch != epoch,
            "the topic commands did not give back the command that was just written",
        )

    def _elect(self) -> int:
        return win(self._settings.holder, self._propose, lambda: (self.view.fleet.epoch, self.view.fleet.holder))

    def _propose(self, epoch: int) -> None:
        self.log.append_all([SchedulerElected(epoch=epoch, holder=self._settings.holder)])
        self.read_on(lambda: self.view.fleet.epoch >= epoch, "the topic commands did not give back the election")


def decide(view: View, settings: SchedulerSettings) -> Decision | None:
    """Who is to leave, else the policy's answer, once every cell has started or is lost."""
    if any(cell not in view.fleet.cells and not view.fleet.lost(cell) for cell in settings.cells):
        return None
    return view.to_leave() or POLICIES[settings.policy](view.cluster(), view.demand(), settings.options)

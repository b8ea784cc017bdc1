"""The reporting process: what each committed step came to, as an event, and that event where people look.

reads     training, trajectories, trees, cells
writes    training: step-reported; an HTTP port (Prometheus), TensorBoard files, Weights & Biases
promises  one report a committed step counts, whoever dies when; displays show what was read back from the ledger; where one of them
          fails the others and the log go on; a stop reports what stands on the log by then
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from consumers.reporting.displays import Display, Displays
from consumers.reporting.prometheus import PortTaken, Prometheus
from consumers.reporting.settings import ReportingSettings
from consumers.reporting.tensorboard_file import TensorBoardFile
from consumers.reporting.wandb_run import WandbRun
from gyre_engine.events import Recorded
from gyre_engine.events.reports import StepReported
from gyre_engine.log.consumer import Consumer, Reading, serve
from gyre_engine.log.consumer import Report as TellHealth
from gyre_engine.log.port import Follower, Log, Offsets
from gyre_engine.reports import Report, Reports

logger = logging.getLogger(__name__)

DRAIN_SECONDS = 5.0
"""How long a stop may take to report what stands on the log."""
APPEND_SECONDS = 30.0


def run(settings: ReportingSettings, log: Log, stop: threading.Event | None = None, report: TellHealth | None = None) -> None:
    """Report until SIGTERM, SIGINT or `stop`."""
    serve(Reporting(log, settings, report=report), stop)


def displays(settings: ReportingSettings, run: str) -> list[Display]:
    """Those that the settings ask for. One that cannot begin is named in the log and left out."""
    wanted: list[Callable[[], Display]] = [lambda: Prometheus(run, settings.host, settings.port)]
    if (folder := settings.board) is not None:
        wanted.append(lambda: TensorBoardFile(folder))
    if (wandb := settings.wandb) is not None:
        wanted.append(lambda: WandbRun(run, wandb))
    return [display for make in wanted if (display := _made(make)) is not None]


def _made(make: Callable[[], Display]) -> Display | None:
    try:
        return make()
    except PortTaken as error:
        logger.error("%s", error)
    except Exception as error:  # libraries of others
        logger.error("reports are not shown in one place: %s: %s", type(error).__name__, error)
    return None


class Reporting(Consumer):
    """Follows the log from where the last report says, makes the reports that are due, and shows those it reads back."""

    name = "reporting"
    topics = ("training", "trajectories", "trees", "cells")

    def __init__(
        self, log: Log, settings: ReportingSettings, shown: Sequence[Display] | None = None, report: TellHealth | None = None
    ) -> None:
        super().__init__(log, Reading(), report)
        self._settings = settings
        self._reports = Reports(settings.config_hash)
        self._displays = Displays(displays(settings, log.run) if shown is None else shown)
        self._written = 0

    def group(self) -> None:
        """None: positions stand in the reports."""

    def start(self) -> Offsets:
        """Read the ledger whole, with the reports on it, before anything is made: then only what is missing will be."""
        self._reports = Reports(self._settings.config_hash)
        ledger = self.log.ends(("training",))
        for record in self.log.read("training", end=ledger):
            self.handle(record)
        return dict(ledger) | {_place(name): offset for name, offset in self._reports.resume.items()}

    def handle(self, record: Recorded) -> None:
        before, event = self._reports.reported, record.event
        due = self._reports.see(record)
        if isinstance(event, StepReported) and self._reports.reported != before:
            self._displays.show(event)
        for report in due:
            self._write(report)

    def last_words(self, follower: Follower) -> None:
        """Go on to the end that the log has now, and until what was written is read back and shown."""
        follower.mark_end()
        end = time.monotonic() + DRAIN_SECONDS
        while time.monotonic() < end and not (follower.at_end() and self._reports.reported >= self._written):
            for record in follower.poll(0.05, self.reading.batch):
                self.handle(record)

    def shut(self) -> None:
        with suppress(OSError):
            self._displays.close()

    def _write(self, report: Report) -> None:
        self.log.append(report.event, id=report.id, cause=report.cause, at=report.at).result(APPEND_SECONDS)
        self._written = report.event.step


def _place(name: str) -> tuple[str, int]:
    topic, _, partition = name.rpartition("/")
    return topic, int(partition)

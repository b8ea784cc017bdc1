"""What shows reports. They are given one after the other, from the run's first step on at every start."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

from gyre_engine.events.reports import StepReported

logger = logging.getLogger(__name__)


class Display(Protocol):
    """One place where reports are looked at."""

    name: str

    def show(self, report: StepReported) -> None:
        """Show a step that was not given before in this life of the process, but may have been in an earlier one."""

    def close(self) -> None:
        """End what was begun."""


class Displays:
    """All of them. One that fails is named in the log and left out from there on: a full disk or a network that is away must not
    keep the others from showing, nor the log from getting its reports."""

    def __init__(self, displays: Sequence[Display]) -> None:
        self._displays = list(displays)
        self._shown = 0

    def show(self, report: StepReported) -> None:
        """Each step once."""
        if report.step <= self._shown:
            return
        self._shown = report.step
        for display in list(self._displays):
            self._try(display, partial(display.show, report))

    def close(self) -> None:
        """Of all."""
        for display in list(self._displays):
            self._try(display, display.close)

    def _try(self, display: Display, act: Callable[[], None]) -> None:
        try:
            act()
        except Exception as error:  # libraries of others, disks, networks
            logger.error("%s shows nothing any more until the reporting process starts again: %r", display.name, error)
            self._displays.remove(display)

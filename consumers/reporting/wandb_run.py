"""Weights & Biases, where `report.wandb` names a project. Its library is an extra, imported here and nowhere else.

Its key comes from the environment (WANDB_API_KEY), which the library reads itself: it passes through nothing of ours.

What is handed to the library is not yet anywhere: a process that is killed takes rows along. So nothing is noted here, and each
life asks the library at which step it goes on: online the one after the last that the server has, offline the first, as files are
not resumed.
"""

from __future__ import annotations

import importlib
from typing import Any

from consumers.reporting.settings import WandbSettings
from gyre_engine.events.reports import StepReported
from gyre_engine.reports.figures import figures

EXTRA = "uv sync --extra wandb"


class WandbMissing(RuntimeError):
    """The library is not installed; the text says how to get it."""


class WandbRun:
    """One run there of one run here, under one id. Online the server gets each step once, over all lives; offline each life writes a
    folder with all steps. Raises WandbMissing."""

    name = "Weights & Biases"

    def __init__(self, run: str, settings: WandbSettings) -> None:
        try:
            self._wandb: Any = importlib.import_module("wandb")
        except ImportError as error:
            raise WandbMissing(f"report.wandb is set, and wandb is not installed: `{EXTRA}`") from error
        self._name, self._settings = run, settings
        self._run: Any = None
        self._next = 0

    def show(self, report: StepReported) -> None:
        if self._run is None:
            self._run = self._begin()
            self._next = self._run.step
        if report.step >= self._next:
            self._run.log({figure.tag: figure.value for figure in figures(report)}, step=report.step, commit=True)

    def close(self) -> None:
        if self._run is not None:
            self._run.finish()

    def _begin(self) -> Any:
        """Only once there is something to send: offline, each beginning is a folder."""
        own = self._settings
        own.folder.mkdir(parents=True, exist_ok=True)
        quiet = self._wandb.Settings(console="off", disable_git=True, save_code=False, silent=True)
        return self._wandb.init(
            project=own.project, id=self._name, name=self._name, resume="allow", mode=own.mode, dir=str(own.folder),
            config=dict(own.config), settings=quiet,
        )  # fmt: skip

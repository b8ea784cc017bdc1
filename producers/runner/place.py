"""Where one execution runs: what the runner asks of a sandbox of this machine and of an environment of Harbor's alike."""

from __future__ import annotations

from typing import Protocol

from gyre_engine.events.executions import Ending, ToolReturned
from gyre_engine.sandbox import Exit
from gyre_engine.work_product import WorkProduct
from producers.runner.harnesses import Trouble


class PlaceError(RuntimeError):
    """The place did not come up, or was lost; the text says how."""


class CalledOff(Exception):
    """The execution was cancelled while its place was being made."""


class Process(Protocol):
    """An agent that runs."""

    @property
    def elapsed_s(self) -> float:
        """Wall clock seconds since its start."""

    async def wait(self, timeout: float) -> bool:
        """Whether it ended within `timeout` seconds."""

    def kill(self) -> None:
        """End it and all that it started; nothing where it has ended."""

    async def exit(self) -> Exit:
        """What is known once it has ended; call it once."""


class Place(Protocol):
    """One workspace, fresh, for one agent."""

    async def prepare(self) -> str:
        """Make it; returns the hash of what an agent that does nothing leaves. Raises TaskError, OSError, PlaceError or CalledOff."""

    def start(self) -> Process:
        """Let the agent begin. Raises OSError."""

    async def work(self) -> WorkProduct:
        """What the agent left, once it has ended. Raises PlaceError where it is gone."""

    def outcome(self, exit: Exit) -> Ending | Trouble:
        """How the agent ended by its own account."""

    def tool_results(self, exit: Exit) -> list[ToolReturned]:
        """What its tools returned, where it says so."""

    async def remove(self) -> None:
        """Leave nothing behind. May be called at any time."""

"""What the runner asks of a harness."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

from gyre_engine.events.executions import Ending, ToolReturned
from gyre_engine.sandbox import Exit, Mount
from gyre_engine.tasks import Task


class HarnessError(ValueError):
    """A harness that cannot be used as configured; the text says why and the remedy."""


class Trouble(StrEnum):
    """An end that is none of the agent's own."""

    CRASHED = "crashed"
    ENDPOINT_LOST = "endpoint-lost"


@dataclass(frozen=True, slots=True)
class HarnessSettings:
    """Of [harness]. `token_budget` 0: none."""

    name: str = "mini"
    command: str = ""
    system: str = ""
    tools: tuple[str, ...] = ("write", "bash")
    answer: str = ""
    """For `mini`: a file that keeps an answer without tool calls; what `check` says of it but ok is the user's next turn."""
    check: str = ""
    check_limit_s: float = 5.0
    check_chars: int = 400
    tool_limit_s: float = 60.0
    tool_chars: int = 10_000
    max_turns: int = 50
    token_budget: int = 0
    patience_s: float = 180.0
    """How long the agent asks again while the endpoint is away or answers 429 or 5xx."""
    call_limit_s: float = 900.0
    context: int = 0
    """Longest prompt + output in tokens, for clients that make room in time; 0: not told to them."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """For Harbor's agents."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The model endpoint as seen by the harness: `base_url` ends in /v1; `socket`: its unix socket, where there is one."""

    base_url: str
    model: str
    key: str = field(repr=False)
    socket: str = ""


@dataclass(frozen=True, slots=True)
class Launch:
    """How to start it. `files` go to a read-only folder that the harness is told of as `folder`; secrets stand in `env` only."""

    argv: tuple[str, ...]
    env: Mapping[str, str]
    files: Mapping[str, bytes] = field(default_factory=dict)
    mounts: tuple[Mount, ...] = ()


class Harness(Protocol):
    """One kind of agent."""

    speaks_unix: bool
    """It connects to Endpoint.socket itself; else a relay process beside it offers the endpoint on loopback."""

    def launch(self, task: Task, endpoint: Endpoint, folder: str, workdir: str) -> Launch:
        """How it is started on a task; `folder` is where `files` will lie, `workdir` where it works."""

    def outcome(self, exit: Exit) -> Ending | Trouble:
        """How it ended by itself."""

    def tool_results(self, execution: str, exit: Exit) -> list[ToolReturned]:
        """What its tools returned, where its output says so."""

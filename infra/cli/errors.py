"""How a command ends: with what it was asked for (0), or with one line that names the thing and the remedy (1)."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import wraps
from typing import NoReturn, ParamSpec, TypeVar

from consumers.scoring.loading import ScorerError
from gyre_engine.config import ConfigError
from gyre_engine.log import LogUnavailable, UnreadableEvent
from gyre_engine.log.brokers import TooFewReplicas
from gyre_engine.log.runs import NoSuchRun
from gyre_engine.log.topics import TopicMismatch
from gyre_engine.sandbox import SandboxUnavailable
from gyre_engine.tasks import DataError, TaskError
from infra.broker.errors import BrokerError
from infra.supervisor.state import StackRunning
from infra.supervisor.supervisor import NotReady, ProcessGaveUp

P = ParamSpec("P")
R = TypeVar("R")

EXPECTED = (
    BrokerError,
    TooFewReplicas,
    ConfigError,
    DataError,
    FileNotFoundError,
    LogUnavailable,
    NoSuchRun,
    NotReady,
    ProcessGaveUp,
    SandboxUnavailable,
    ScorerError,
    StackRunning,
    TaskError,
    TopicMismatch,
    UnreadableEvent,
)


class CommandError(RuntimeError):
    """A command cannot do what it was asked; the text says why and what would help."""


def fail(message: object) -> NoReturn:
    """Say it on stderr and end with status 1."""
    text = str(message)
    print(text if text.startswith("gyre: ") else f"gyre: {text}", file=sys.stderr)
    raise SystemExit(1)


def plainly(command: Callable[P, R]) -> Callable[P, R]:
    """Errors that a person can mend come as one line, not as a traceback."""

    @wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return command(*args, **kwargs)
        except (CommandError, *EXPECTED) as error:
            fail(error)

    return run

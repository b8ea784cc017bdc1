"""How a command ends: with what it was asked for (0), with a line a problem that names the thing and the remedy (1), or by a signal
(128 and its number, as shells have it)."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import NoReturn, ParamSpec, TypeVar

from consumers.scoring.loading import ScorerError
from gyre_engine.config import ConfigError, read_source
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


def fail(message: object, status: int = 1) -> NoReturn:
    """Say it on stderr, each line as gyre's, and end."""
    for line in str(message).splitlines():
        print(line if line.startswith("gyre: ") else f"gyre: {line}", file=sys.stderr)
    raise SystemExit(status)


def nearest(word: str, names: Iterable[str]) -> str:
    """` Did you mean ...?`, or nothing where no name is like `word`."""
    near = difflib.get_close_matches(word, names, n=1, cutoff=0.6)
    return f" Did you mean {near[0]}?" if near else ""


@contextmanager
def placed(experiment: Path | None, overrides: Sequence[str] = ()) -> Iterator[None]:
    """What is wrong with a config that came from this file is told with the lines on which it stands."""
    try:
        yield
    except ConfigError as error:
        if experiment is None:
            raise
        raise error.found_in(read_source(experiment, overrides)) from error


def plainly(command: Callable[P, R]) -> Callable[P, R]:
    """Errors that a person can mend come as plain lines, not as a traceback."""

    @wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return command(*args, **kwargs)
        except (CommandError, *EXPECTED) as error:
            fail(error)

    return run

"""`gyre run`: starts what the config asks for, trains, shows progress, stops what it started."""

from __future__ import annotations

import dataclasses
import logging
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from textwrap import shorten

from rich.console import Console
from rich.live import Live

from consumers.dashboard.terminal import Display, final_table, one_line
from consumers.dashboard.view import RunView
from gyre_engine.config import Config, config_from_json
from gyre_engine.training.fingerprint import differences, fingerprint
from gyre_engine.training.model.maskable import why_paths
from infra.cli.attach import attach
from infra.cli.errors import CommandError
from infra.stack.layout import StackFolder
from infra.stack.pinned import replaced
from infra.stack.session import Session, StackEnded
from infra.stack.versions import versions
from infra.supervisor.spec import SupervisorEvent

REASON_LIMIT = 800
"""Characters of a run's reason for ending."""
STATED = {"ended", "restarting", "gave-up"}


@dataclass(frozen=True, slots=True)
class Ran:
    """A run that is over."""

    run: str
    view: RunView
    seconds: float


@dataclass(frozen=True, slots=True)
class Resumed:
    """A run to go on with. `pinned`: its config as its start wrote it; `config`: the same, with the secrets of this folder."""

    run: str
    pinned: str
    config: Config


class Interrupted(KeyboardInterrupt):
    """Ctrl-C or SIGTERM: the run is stopped in order. `run`: its name, once it can be gone on with; `status`: to end with."""

    def __init__(self, number: int) -> None:
        self.status, self.run = 128 + number, ""

    def __str__(self) -> str:
        if not self.run:
            return "interrupted before the run began: there is nothing to go on with"
        return f"interrupted: {self.run} was stopped in order; `gyre run --resume {self.run}` goes on with it"


def train(config: Config, folder: StackFolder, console: Console, *, resumed: Resumed | None = None) -> Ran:
    """Run to the end; `resumed` is a run to go on with. Ctrl-C ends everything within 10 seconds and raises Interrupted."""
    run, pinned = (resumed.run, resumed.pinned) if resumed else ("", "")
    session = Session(
        config, folder, on_event=lambda e: _say(console, e), on_notice=lambda line: _notice(console, line), run=run, pinned=pinned
    )
    outcome, reason = "failed", ""
    with _interrupts():
        try:
            console.print(f"run [bold]{session.run}[/bold]  in {folder.root}")
            if why := why_paths(config.batch.trees, Path(config.model.path)):
                console.print(f"training separate root-to-leaf paths, not trees: {why}", highlight=False)
            session.start()
            with _shown(session, console) as show:
                session.follow(show)
            outcome = "completed"
        except Interrupted as interrupted:
            outcome, reason = "stopped", "interrupted"
            interrupted.run = session.run if session.on_the_log else ""
            raise
        except StackEnded as error:
            reason = str(error)
            raise CommandError(reason) from error
        except Exception as error:
            reason = reason_of(error)
            raise
        finally:
            session.stop(outcome, reason)
    seconds = time.monotonic() - session.began
    final_table(session.view, console, seconds)
    return Ran(session.run, session.view, seconds)


def reason_of(error: Exception) -> str:
    """Why a run ended, on one line: `gyre runs` shows one a run."""
    return shorten(f"{type(error).__name__}: {error}", REASON_LIMIT, placeholder=" ...")


@contextmanager
def _shown(session: Session, console: Console) -> Iterator[Callable[[RunView], None]]:
    """Progress on a terminal; a line a step elsewhere."""
    display = Display(session.run, session.began)
    with ExitStack() as stack:
        if console.is_terminal:
            live = stack.enter_context(Live(console=console, refresh_per_second=4, transient=True))
            yield lambda view: live.update(display.render(view, time.monotonic()))
            return
        said = [-1]

        def line(view: RunView) -> None:
            if view.step != said[0]:
                said[0] = view.step
                console.print(one_line(view), highlight=False, soft_wrap=True)

        yield line


def _say(console: Console, event: SupervisorEvent) -> None:
    if event.kind in STATED and not (event.kind == "ended" and event.name == "runner"):
        _notice(console, f"{event.name}: {event.kind}{' (' + event.text + ')' if event.text else ''}")


def _notice(console: Console, line: str) -> None:
    """One line, whole: on a terminal above the display."""
    console.print(line, style="yellow", highlight=False, markup=False, soft_wrap=True)


@contextmanager
def _interrupts() -> Iterator[None]:
    def stop(number: int, _frame: object) -> None:
        raise Interrupted(number)

    before = {n: signal.signal(n, stop) for n in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def quiet_logging(verbose: bool) -> None:
    """The program's own log: warnings, or all of it."""
    logging.basicConfig(level=logging.INFO if verbose else logging.ERROR, stream=sys.stderr, format="%(name)s: %(message)s")


def to_resume(run: str, folder: StackFolder) -> Resumed:
    """The run to go on with. Raises CommandError where it is over, or would not go on with the same bits."""
    with attach(run, folder) as attached:
        info = attached.info
    if info.ended is not None and info.ended.outcome == "completed":
        raise CommandError(f"{info.run} is complete ({info.ended.steps} steps); start a new run, or `gyre eval {info.run}@STEP`")
    config = config_from_json(info.started.config)
    here = fingerprint(int(info.started.fingerprint.get("threads", "1")), config.training.device)
    changed = (*differences(info.started.fingerprint, here), *differences(info.started.versions, versions()))
    if changed:
        raise CommandError(f"{info.run} cannot go on here, its steps would not be the same: {'; '.join(dict.fromkeys(changed))}")
    if changed := tuple(replaced(info.started, config)):
        raise CommandError(f"{info.run} cannot go on, its steps would not be the same: {'; '.join(changed)}")
    url = folder.private().get("clickhouse.url", config.clickhouse.url)
    config = dataclasses.replace(
        config, kafka=dataclasses.replace(config.kafka, librdkafka=folder.librdkafka()),
        clickhouse=dataclasses.replace(config.clickhouse, url=url),
    )  # fmt: skip
    return Resumed(info.run, info.started.config, config)

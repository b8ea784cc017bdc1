"""`gyre replay`: train again from the log and say of each step whether it is the same."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from multiprocessing import Pipe, get_context
from multiprocessing.connection import Connection

from rich.console import Console

from consumers.replay.process import ReplaySettings, StepVerdict, not_comparable, replay
from gyre_engine.config import config_from_json, with_overrides
from gyre_engine.log import Log
from infra.cli.attach import Attached
from infra.cli.errors import CommandError
from infra.stack import wiring
from infra.stack.checks import cuda_is_here
from infra.stack.pinned import replaced
from infra.stack.versions import versions

OpenLog = Callable[[], AbstractContextManager[Log]]
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


@dataclass(frozen=True, slots=True)
class Verdict:
    """`verified`: all steps were compared and are the same; None where this machine cannot compare."""

    steps: int
    verified: bool | None
    problem: str = ""


def replay_run(attached: Attached, console: Console, *, verify: bool, until: int, overrides: list[str]) -> Verdict:
    """Replay the run and print a line a step."""
    settings = settings_of(attached, verify=verify, until=until, overrides=overrides)
    problems = not_comparable(attached.info.started, settings, versions())
    if problems and settings.verify:
        console.print(f"not comparable here: {'; '.join(problems)}", highlight=False)
        settings = dataclasses.replace(settings, verify=False)
    last: StepVerdict | None = None
    count = 0
    for last in _verdicts(attached, settings):
        count += 1
        console.print(_line(last), highlight=False, soft_wrap=True)
    if last is not None and last.verified is False:
        return Verdict(count, False, last.problem)
    return Verdict(count, True if settings.verify and count else None)


def _verdicts(attached: Attached, settings: ReplaySettings) -> Iterator[StepVerdict]:
    """Here, or, where a replica is several processes, in one of its own: they are forked off a process without threads."""
    return replay(attached.log, settings) if settings.mesh.ranks == 1 else replay_apart(attached.log, settings)


def replay_apart(open_log: OpenLog, settings: ReplaySettings) -> Iterator[StepVerdict]:
    """As `replay`, in a process that ends with this iterator. Raises CommandError where that ended with an error."""
    ours, theirs = Pipe(duplex=False)
    process = get_context("spawn").Process(target=_replay_for, args=(theirs, open_log, settings))
    with _one_thread():
        process.start()
    theirs.close()
    try:
        with contextlib.suppress(EOFError):
            while True:
                yield ours.recv()
        process.join()
        if process.exitcode:
            raise CommandError(f"the replay's own process ended with status {process.exitcode}; its error stands above")
    finally:
        ours.close()
        process.kill()
        process.join()


def _replay_for(pipe: Connection, open_log: OpenLog, settings: ReplaySettings) -> None:
    for verdict in replay(open_log, settings):
        pipe.send(verdict)


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    """Numeric libraries start their threads when they are imported; what begins in here starts none."""
    before = dict(os.environ)
    os.environ.update(dict.fromkeys(THREADS, "1"))
    try:
        yield
    finally:
        for name in THREADS:
            os.environ.pop(name)
        os.environ.update({name: before[name] for name in THREADS if name in before})


def in_words(run: str, verdict: Verdict) -> str:
    """What a replay came to, in one line. Raises CommandError where it differs, or there was nothing to replay."""
    if verdict.verified is False:
        raise CommandError(f"replay differs from the log: {verdict.problem}")
    if not verdict.steps:
        raise CommandError(f"{run} has no committed step to replay")
    said = "verified: every step's micro-steps and weights are those on the log" if verdict.verified else "made, nothing compared"
    return f"{run}: {verdict.steps} steps {said}"


def settings_of(attached: Attached, *, verify: bool, until: int, overrides: list[str]) -> ReplaySettings:
    """What the run was trained with, with changes; a changed replay is not compared."""
    started = attached.info.started
    config = config_from_json(started.config)
    if overrides:
        config, verify = with_overrides(config, overrides), False
    if changed := tuple(replaced(started, config)):
        raise CommandError(f"{attached.info.run} cannot be replayed: {'; '.join(changed)}")
    settings = wiring.replay(config, started.config_hash)
    if settings.options.device != "cpu" and not cuda_is_here():
        raise CommandError(
            f"{attached.info.run} was trained on a GPU, and torch finds none here: replay it with --set training.device=cpu "
            "and without --verify: nothing can be compared there"
        )
    return dataclasses.replace(settings, verify=verify, until=until)


def _line(verdict: StepVerdict) -> str:
    if verdict.verified is False:
        return f"DIFFERS  {verdict.problem}"
    word = "same" if verdict.verified else "made"
    return f"step {verdict.step:4d}  {word}  {verdict.micro_steps} micro-steps  weights {verdict.weights_hash[:16]}"

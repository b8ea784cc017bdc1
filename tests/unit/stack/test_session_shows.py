"""What a run that is resumed shows first: where it stands, not what its log begins with."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gyre_engine.config import Config, with_overrides
from gyre_engine.events import Recorded
from gyre_engine.events.training import StepCommitted
from gyre_engine.log.memory import MemoryFollower, MemoryLog
from infra.stack.layout import StackFolder
from infra.stack.session import Session
from infra.supervisor.spec import State
from tests.unit.stack.test_launch import launch


class ByTheDrop(MemoryLog):
    """Gives one record a poll, and nothing by the first, as a broker does."""

    def follow(self, *given: Any, **named: Any) -> MemoryFollower:
        follower, poll, polls = (whole := super().follow(*given, **named)), whole.poll, iter(range(1000))

        def drop(timeout: float, limit: int = 1000) -> list[Recorded]:
            return poll(0.0, 1) if next(polls) else []

        follower.poll = drop  # type: ignore[method-assign]
        return follower


def committed(step: int) -> StepCommitted:
    return StepCommitted(
        core_epoch=1, step=step, attempt=1, merge_order=(), weights_hash="", executions=1, grad_norm=0.0, loss=0.0,
        reward_mean=0.5,
    )  # fmt: skip


class Stopped(Exception):
    """Enough was shown."""


@pytest.mark.parametrize(("stand", "shown"), [(0, [0, 1, 2, 3]), (3, [3, 4, 5, 6])])
def test_nothing_is_shown_before_what_stands_on_the_log_was_read(tmp_path: Path, stand: int, shown: list[int]) -> None:
    log, config = ByTheDrop(run="r"), with_overrides(Config(), ["run.steps=12"])
    log.append_all([committed(step) for step in range(1, stand + 1)])
    running = SimpleNamespace(statuses=lambda: [SimpleNamespace(name="runner", state=State.RUNNING)], wait=lambda seconds: False)
    session = Session(config, StackFolder(tmp_path), run="r")
    session.log, session.launch, session.supervisor = log, launch(config), running  # type: ignore[assignment]
    seen: list[int] = []

    def show(view: Any) -> None:
        seen.append(view.step)
        if len(seen) == 4:
            raise Stopped
        log.append(committed(view.step + 1)).result()

    with pytest.raises(Stopped):
        session.follow(show)
    assert seen == shown

"""What a person is told while a run goes on stands on one line each, whole, however narrow the place and whatever is in it."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

from gyre_engine.config import Config
from infra.cli import running
from infra.stack.layout import StackFolder
from infra.supervisor.spec import SupervisorEvent

NOTICE = "the checkpoint of step 7 cannot be used: s3://bucket holds no checkpoint of step 7; it has [red]5[/red]"


class Failing:
    """A session that says two things and fails."""

    def __init__(
        self, config: Config, folder: StackFolder, *, on_event: Callable[[SupervisorEvent], None], on_notice: Callable[[str], None],
        run: str, pinned: str,
    ) -> None:  # fmt: skip
        self.run, self.began, self._event, self._notice = "exp-1", 0.0, on_event, on_notice

    def start(self) -> None:
        self._notice(NOTICE)
        self._event(SupervisorEvent("started", "proxy", 1, ""))
        self._event(SupervisorEvent("gave-up", "cell-0-trainer", 0, "ended with status 78: another start would end the same way"))
        raise RuntimeError("enough")

    def stop(self, outcome: str, reason: str) -> None: ...


def test_a_notice_and_an_end_are_lines_of_their_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(running, "Session", Failing)
    text = io.StringIO()
    with pytest.raises(RuntimeError, match="enough"):
        running.train(Config(), StackFolder(tmp_path), Console(file=text, width=40))
    assert text.getvalue().splitlines()[-2:] == [
        NOTICE, "cell-0-trainer: gave-up (ended with status 78: another start would end the same way)"
    ]  # fmt: skip

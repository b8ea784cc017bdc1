"""Ctrl-C ends a run in order: the status is that of shells, and one line says how the run goes on."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from infra.cli import running
from infra.cli.main import main


class Cut:
    """A session in whose start, before or after the run stands on the log, a signal comes."""

    number = signal.SIGINT
    on_the_log = True
    ends: list[tuple[str, str]]
    """Of all sessions: how each was told to end."""

    def __init__(self, *_: object, **__: object) -> None:
        self.run, self.view, self.began = "exp-1", None, 0.0

    def start(self) -> None:
        signal.raise_signal(self.number)

    def follow(self, show: object) -> None:
        raise AssertionError("the signal was not heard")

    def stop(self, outcome: str, reason: str) -> None:
        self.ends.append((outcome, reason))


@pytest.fixture
def cut(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str]]:
    """Has `gyre run` be cut short: (exit status, stderr)."""
    (tmp_path / "exp.toml").write_text("[run]\nsteps = 3\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GYRE_HOME", str(tmp_path / ".gyre"))
    monkeypatch.setattr(sys, "argv", ["gyre", "run", "exp.toml"])

    def run(**kinds: Any) -> tuple[int, str]:
        monkeypatch.setattr(running, "Session", type("Session", (Cut,), {"ends": [], **kinds}))
        with pytest.raises(SystemExit) as end:
            main()
        assert running.Session.ends == [("stopped", "interrupted")]  # type: ignore[attr-defined]
        assert isinstance(end.value.code, int)
        return end.value.code, capsys.readouterr().err

    return run


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_run_says_how_it_goes_on_and_ends_as_shells_expect(
    cut: Callable[..., tuple[int, str]], number: int, status: int
) -> None:
    assert cut(number=number) == (
        status, "gyre: interrupted: exp-1 was stopped in order; `gyre run --resume exp-1` goes on with it\n"
    )  # fmt: skip


def test_a_run_that_is_not_on_the_log_yet_cannot_be_resumed_and_that_is_said(cut: Callable[..., tuple[int, str]]) -> None:
    assert cut(on_the_log=False) == (130, "gyre: interrupted before the run began: there is nothing to go on with\n")

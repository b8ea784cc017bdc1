"""What a replay came to, in words: only one that compared and found a difference differs, only one that compared verifies."""

import io
from pathlib import Path

import pytest
from rich.console import Console

from consumers.replay.process import StepVerdict
from infra.cli import replaying
from infra.cli.errors import CommandError
from infra.cli.replaying import Verdict, in_words, replay_run
from tests.unit.cli.pinned_run import pinned_run


def test_a_replay_is_verified_only_where_it_was_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`verified` of each step follows the settings, as the process has it; both are asked of it here."""
    monkeypatch.setattr(
        replaying, "_verdicts", lambda _attached, settings: [StepVerdict(1, 2, "f" * 64, True if settings.verify else None)]
    )
    attached, quiet = pinned_run(tmp_path), Console(file=io.StringIO())
    assert replay_run(attached, quiet, verify=True, until=0, overrides=[]) == Verdict(1, True)
    assert replay_run(attached, quiet, verify=False, until=0, overrides=[]) == Verdict(1, None)
    assert replay_run(attached, quiet, verify=True, until=0, overrides=["optimizer.lr=5e-4"]) == Verdict(1, None)


def test_a_verdict_in_words() -> None:
    assert (
        in_words("r-1", Verdict(20, True)) == "r-1: 20 steps verified: every step's micro-steps and weights are those on the log"
    )
    assert in_words("r-1", Verdict(2, None)) == "r-1: 2 steps made, nothing compared"


def test_a_run_without_a_step_differs_from_nothing() -> None:
    """An evaluation, or a run that was interrupted before its first commit."""
    with pytest.raises(CommandError, match=r"^r-1 has no committed step to replay$"):
        in_words("r-1", Verdict(0, None))


def test_a_difference_names_its_step() -> None:
    with pytest.raises(CommandError, match="replay differs from the log: step 3"):
        in_words("r-1", Verdict(3, False, "step 3: other weights"))

"""What a replay came to, in words: only one that compared and found a difference differs."""

import pytest

from infra.cli.errors import CommandError
from infra.cli.replaying import Verdict, in_words


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

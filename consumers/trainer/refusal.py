"""Steps that were refused because their gradient was not finite: in words, and when to give up. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from gyre_engine.events.training import StepRefused
from gyre_engine.training.replica import Untrainable

ATTEMPTS = 2
"""One that is refused so often is not computed again: the same inputs give the same bits."""


def in_words(refused: StepRefused) -> str:
    """What was refused, whose gradients they were, and what follows."""
    whose = ", ".join(refused.cells) or "no single member, only the sum"
    since = f" (since micro-step {', '.join(refused.micro_steps)})" if refused.micro_steps else ""
    after = (
        "the step is skipped"
        if refused.outcome == "skip"
        else 'the run stops (in a new run, optimizer.nonfinite = "skip" goes on)'
    )
    return f"step {refused.step}: the gradients of {whose}{since} are not finite; the weights stay as they were, {after}"


def require_not_refused(refused: Sequence[StepRefused]) -> None:
    """Raises Untrainable where the next step was refused before, as often as is of use."""
    stops = [event for event in refused if event.outcome == "stop"]
    if len(stops) >= ATTEMPTS:
        raise Untrainable(
            f"{in_words(stops[-1])}. It was refused {len(stops)} times and is not tried again: begin a new run with other settings, "
            "and with model.path at the newest checkpoint where there is one"
        )

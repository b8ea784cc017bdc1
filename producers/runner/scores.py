"""The scores that a report of an evaluation still needs: a fold over `scores` that forgets what nobody will ask for.

promises  of the pinned scorer the first final score of an execution counts; training's scores and those of reported evaluations are
          not kept
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from gyre_engine.events.executions import EvaluationFailed, Scored


class PendingScores:
    """`evaluation_of`: the evaluation that an execution belongs to, None for training."""

    def __init__(self, scorer: str, version: str, evaluation_of: Callable[[str], str | None]) -> None:
        self._pinned, self._evaluation_of = (scorer, version), evaluation_of
        self._rewards: dict[str, dict[str, float | None]] = {}
        self.reported: set[str] = set()

    def note(self, event: Scored | EvaluationFailed) -> None:
        """Keep it, where a report is to come."""
        if (event.scorer, event.scorer_version) != self._pinned or not (isinstance(event, Scored) or event.final):
            return
        evaluation = self._evaluation_of(event.execution)
        if evaluation is not None and evaluation not in self.reported:
            self._rewards.setdefault(evaluation, {}).setdefault(event.execution, _reward(event))

    def of(self, evaluation: str) -> Mapping[str, float | None]:
        """Rewards of an evaluation's executions so far; None: it was not evaluated, and never will be."""
        return self._rewards.get(evaluation, {})

    def close(self, evaluation: str) -> None:
        """Its report stands on the log."""
        self.reported.add(evaluation)
        self._rewards.pop(evaluation, None)

    def __len__(self) -> int:
        """How many are kept."""
        return sum(map(len, self._rewards.values()))


def _reward(event: Scored | EvaluationFailed) -> float | None:
    return event.reward if isinstance(event, Scored) and not event.placeholder else None

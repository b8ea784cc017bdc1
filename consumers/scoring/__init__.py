"""Scoring: what an execution left behind becomes a reward. `port` is what a scorer is, `verifier` the one that Gyre brings."""

from consumers.scoring.port import EvaluationBroken, Score, ScoredExecution, Scorer

__all__ = ["EvaluationBroken", "Score", "ScoredExecution", "Scorer"]

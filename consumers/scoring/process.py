"""The scoring process, and scoring a run's history with a scorer of one's own (`gyre score`).

reads     executions, scores
writes    scores
promises  what was being evaluated when it is stopped is evaluated by the next one
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from consumers.scoring.harbor_verifier import HarborVerifier
from consumers.scoring.loading import load_scorer
from consumers.scoring.port import Scorer
from consumers.scoring.scoring import Scoring, Tally
from consumers.scoring.verifier import VerifierScorer, VerifierSettings
from gyre_engine.harbor import HarborSettings, stop_leftovers
from gyre_engine.log.consumer import Report
from gyre_engine.log.port import Log
from gyre_engine.sandbox import Isolation, Limits, sandbox_available
from gyre_engine.tasks import Source, load_catalog
from gyre_engine.work_product import remove_tree


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoringSettings:
    """Of [scoring], [data] and [runner]. `scratch`: a local folder of this process alone; it is emptied when it starts."""

    sources: tuple[Source, ...]
    scratch: Path
    scorer: str = "verifier"
    attempts: int = 2
    concurrent: int = 2
    weights: Mapping[str, float] = field(default_factory=dict)
    bounds: tuple[float, float] = (0.0, 1.0)
    sandboxed: bool = True
    limits: Limits = field(default_factory=Limits)
    harbor: HarborSettings | None = None
    """Where the verifier runs in an environment of Harbor's."""


def run(settings: ScoringSettings, log: Log, report: Report | None = None) -> int:
    """Scores until SIGTERM or SIGINT; exit code 0 then."""
    stop_leftovers(settings.scratch)
    remove_tree(settings.scratch)
    scorer, catalog = make_scorer(settings), load_catalog(settings.sources)
    scoring = Scoring(log, scorer, catalog, attempts=settings.attempts, concurrent=settings.concurrent, report=report)
    asyncio.run(_serve(scoring, follow=True))
    return 0


def make_scorer(settings: ScoringSettings) -> Scorer:
    """The verifier, or MODULE:CLASS. Raises ScorerError, SandboxUnavailable."""
    if settings.scorer != "verifier":
        return load_scorer(settings.scorer)
    if settings.harbor is not None:
        return HarborVerifier(settings.harbor, settings.scratch, settings.weights, settings.bounds)
    isolation = sandbox_available() if settings.sandboxed else Isolation.NONE
    return VerifierScorer(VerifierSettings(isolation, settings.scratch, settings.weights, settings.bounds, settings.limits))


def score_history(log: Log, scorer: Scorer, settings: ScoringSettings, *, follow: bool = False) -> Tally:
    """Score all finished executions of a run that this scorer version has not scored; with `follow` go on until interrupted.

    Task folders that are not on this machine are None to the scorer.
    """
    catalog = load_catalog([s for s in settings.sources if s.there])
    scoring = Scoring(log, scorer, catalog, attempts=settings.attempts, concurrent=settings.concurrent, every=True)
    asyncio.run(_serve(scoring, follow=follow))
    return scoring.tally


async def _serve(scoring: Scoring, *, follow: bool) -> None:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, scoring.stop)
    await scoring.score(follow=follow)

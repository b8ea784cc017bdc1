"""Scores every finished execution of a run, once.

reads     executions (by execution), scores (its own, when it starts)
writes    scores (by execution)
promises  one success an execution and scorer version, whatever is delivered twice or restarted; a broken evaluation is
          never a 0: it is tried again within the budget, then final
"""

from __future__ import annotations

import asyncio
import logging
import math
import numbers
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace

from consumers.scoring.port import EvaluationBroken, Score, ScoredExecution, Scorer
from gyre_engine.events import Event, Recorded, derived_id
from gyre_engine.events.executions import Discarded, DiscardReason, Dispatched, EvaluationFailed, Finished, Scored
from gyre_engine.log.consumer import Consumer, Report
from gyre_engine.log.port import Log
from gyre_engine.tasks import Catalog, DataError, Task

logger = logging.getLogger("gyre.scoring")

_PAUSE_S = 0.5


@dataclass(slots=True)
class Tally:
    """What was done. `skipped`: scored before."""

    scored: int = 0
    failed: int = 0
    skipped: int = 0


@dataclass(slots=True)
class _Done:
    """What the log holds of this scorer: executions that are settled, and failed attempts of those that are not."""

    settled: set[str] = field(default_factory=set)
    failures: dict[str, int] = field(default_factory=dict)


class Scoring(Consumer):
    """Follows the executions of a run with one scorer, in a consumer group of its own.

    The base follows in a thread of its own; scorers run on the event loop that `score` was called on.
    """

    topics = ("executions",)

    def __init__(
        self, log: Log, scorer: Scorer, catalog: Catalog | None, *, attempts: int = 2, concurrent: int = 2, every: bool = False,
        report: Report | None = None,
    ) -> None:  # fmt: skip
        """`every`: from the beginning, whatever the group has committed (what has a score is still passed over)."""
        self.name = f"scoring-{scorer.name}-{scorer.version}".replace(":", "-").replace("/", "-")
        super().__init__(log, report=report)
        self._scorer, self._catalog = scorer, catalog
        self._attempts, self._slots, self._every = attempts, asyncio.Semaphore(concurrent), every
        self._dispatched: dict[str, Dispatched] = {}
        self._done, self._running = _Done(), set[asyncio.Task[None]]()
        self._loop: asyncio.AbstractEventLoop | None = None
        self.tally = Tally()

    async def score(self, *, follow: bool = True) -> None:
        """Until `stop`, or, without `follow`, until all that stands on the log now is scored. What is being evaluated at a stop
        is evaluated again by the next one."""
        self._loop = asyncio.get_running_loop()
        await asyncio.to_thread(self._recover)
        try:
            await asyncio.to_thread(self.run if follow else self.run_to_end)
        finally:
            for task in self._running:
                task.cancel()
            await asyncio.gather(*self._running, return_exceptions=True)

    def group(self) -> str | None:
        return None if self._every else self.name

    def handle(self, record: Recorded) -> None:
        self._on_loop(self._take, record)

    def idle(self) -> None:
        """Raises what an evaluation could not log: the process ends, and its supervisor starts the next."""
        self._on_loop(self._raise_failures)

    def settled(self) -> bool:
        return not self._running

    def _on_loop(self, work: Callable[..., None], *args: object) -> None:
        async def do() -> None:
            work(*args)

        if self._loop is None:
            raise RuntimeError("scoring runs by `score`")
        asyncio.run_coroutine_threadsafe(do(), self._loop).result()

    def _recover(self) -> None:
        for record in self.log.read("executions"):
            if isinstance(record.event, Dispatched):
                self._dispatched[record.event.execution] = record.event
        for record in self.log.read("scores"):
            self._recall(record.event)

    def _recall(self, event: Event) -> None:
        mine = (self._scorer.name, self._scorer.version)
        if isinstance(event, Scored) and (event.scorer, event.scorer_version) == mine:
            self._done.settled.add(event.execution)
        elif isinstance(event, EvaluationFailed) and (event.scorer, event.scorer_version) == mine:
            self._done.failures[event.execution] = max(self._done.failures.get(event.execution, 0), event.evaluation_attempt)
            if event.final:
                self._done.settled.add(event.execution)

    def _raise_failures(self) -> None:
        for task in [task for task in self._running if task.done()]:
            task.result()  # one that failed stays: positions are not committed past what it was to score
            self._running.discard(task)

    def _take(self, record: Recorded) -> None:
        match record.event:
            case Dispatched() as event:
                self._dispatched[event.execution] = event
            case Finished() as finished if self._is_new(finished.execution):
                self._schedule(finished.execution, lambda: self._evaluate(finished, record.id))
            case Discarded(reason=DiscardReason.ENVIRONMENT, final=True) as gone if self._is_new(gone.execution):
                self._schedule(gone.execution, lambda: self._placeholder(gone, record.id))

    def _is_new(self, execution: str) -> bool:
        if execution in self._done.settled:
            self.tally.skipped += 1
            return False
        self._done.settled.add(execution)  # the first terminal event counts
        return True

    def _schedule(self, execution: str, work: Callable[[], Awaitable[None]]) -> None:
        async def one() -> None:
            async with self._slots:
                await work()
            self._dispatched.pop(execution, None)

        self._running.add(asyncio.create_task(one()))

    async def _evaluate(self, finished: Finished, id: str) -> None:
        """Attempts until one succeeds or the budget is spent."""
        for attempt in range(self._done.failures.get(finished.execution, 0) + 1, self._attempts + 1):
            started = time.monotonic()
            outcome = await self._attempt(finished)
            event = self._event(finished.execution, attempt, outcome, int((time.monotonic() - started) * 1e6))
            await self._append(event, id, attempt)
            if isinstance(event, Scored):
                self.tally.scored += 1
                return
            await asyncio.sleep(0 if event.final else _PAUSE_S * attempt)
        self.tally.failed += 1

    async def _attempt(self, finished: Finished) -> Score | str:
        """The score, or what broke."""
        dispatched = self._dispatched.get(finished.execution)
        if dispatched is None:
            return "the log holds no Dispatched event of this execution"
        try:
            return _sound(await self._scorer.score(ScoredExecution(dispatched, finished, self._task(dispatched))))
        except EvaluationBroken as broken:
            return str(broken)
        except (
            Exception
        ) as error:  # a scorer is anybody's code: what it raises is a failed evaluation, never the end of the process
            logger.warning("scorer %s broke on %s", self._scorer.name, finished.execution, exc_info=True)
            return f"{type(error).__name__}: {error}"

    def _task(self, dispatched: Dispatched) -> Task | None:
        if self._catalog is None:
            return None
        try:
            return self._catalog.find(dispatched.split, dispatched.source, dispatched.query)
        except DataError:
            return None

    def _event(self, execution: str, attempt: int, outcome: Score | str, took_us: int) -> Scored | EvaluationFailed:
        name, version = self._scorer.name, self._scorer.version
        if isinstance(outcome, str):
            return EvaluationFailed(
                execution=execution, scorer=name, scorer_version=version, evaluation_attempt=attempt, reason=outcome[:1000],
                final=attempt >= self._attempts, took_us=took_us,
            )  # fmt: skip
        return Scored(
            execution=execution, scorer=name, scorer_version=version, evaluation_attempt=attempt, reward=outcome.reward,
            rewards=dict(outcome.rewards), flags=tuple(outcome.flags), took_us=took_us,
        )  # fmt: skip

    async def _placeholder(self, discarded: Discarded, id: str) -> None:
        """The environment never came up: a reward of 0 that counts nowhere (learning.md, 4)."""
        event = Scored(
            execution=discarded.execution, scorer=self._scorer.name, scorer_version=self._scorer.version, evaluation_attempt=1,
            reward=0.0, placeholder=True,
        )  # fmt: skip
        await self._append(event, id, 1)
        self.tally.scored += 1

    async def _append(self, event: Event, cause: str, attempt: int) -> None:
        """Under an id that says what it is derived from: doing it twice makes the same event."""
        id = derived_id((cause,), f"score/{self._scorer.name}/{self._scorer.version}", 1, "", attempt)
        await asyncio.wrap_future(self.log.append(event, cause=cause, id=id))


def _sound(score: Score) -> Score:
    """The score with floats alone. Raises EvaluationBroken naming what is no finite number."""
    given = {"reward": score.reward, **{f"rewards[{key!r}]": value for key, value in score.rewards.items()}}
    for name, value in given.items():
        if isinstance(value, bool) or not isinstance(value, numbers.Real) or not math.isfinite(value):
            raise EvaluationBroken(f"the scorer gave {name} = {value!r}, which is no finite number")
    return replace(score, reward=float(score.reward), rewards={key: float(value) for key, value in score.rewards.items()})

"""The runner.

reads     executions (its own), training (publications, steps), scores (of evaluations), trajectories (pass rates, where filtered by)
writes    executions (by execution), tool-events (by execution), training (evaluation reports)
promises  every place of every group is dispatched once and ends once; classes start in order, at most `max_concurrent` at a time;
          what a dead runner had started is discarded as lost and tried again, what it had only dispatched is started;
          training is held while an evaluation, pinned to one version, is open
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from dataclasses import replace

from gyre_engine.events import Event, Recorded
from gyre_engine.events.executions import Discarded, DiscardReason, Dispatched, EvaluationFailed, Finished, Scored
from gyre_engine.events.training import EvaluationReported, GroupAdmitted, Published, StepCommitted
from gyre_engine.log.port import Log
from gyre_engine.tasks import FILTERS, Catalog, DataError, DrawOrder, draw
from producers.runner.board import Board, State
from producers.runner.dispatch import Evaluation, GroupShape, evaluation_tasks, plan_evaluation, training_groups
from producers.runner.endings import RESTART, tried_again
from producers.runner.execution import Execution, Outside
from producers.runner.report import report
from producers.runner.scores import PendingScores

logger = logging.getLogger("gyre.runner")

FOLLOWED = ("training", "scores", "trajectories")
_POLL_S = 0.5


class Runner:
    """Drives one run to its end, or until `stop`."""

    def __init__(self, log: Log, catalog: Catalog, outside: Outside) -> None:
        self._log, self._catalog, self._outside, self._settings = log, catalog, outside, outside.settings
        self._board = Board()
        self._scores = PendingScores(self._settings.scorer, self._settings.scorer_version, self._board.evaluation_of)
        self._order = DrawOrder(catalog, "train", self._settings.seed) if self._settings.plan.steps else None
        self._rates: dict[tuple[str, str], float] = {}
        self._committed, self._published, self._earlier = 0, 0, -1
        self._opened: set[str] = set()
        self._evaluations: list[Evaluation] = []
        self._running: dict[str, tuple[asyncio.Task[None], asyncio.Event]] = {}
        self._wake, self._stopping = asyncio.Event(), False

    def stop(self) -> None:
        """End soon: what runs is discarded as lost and tried again by the next runner."""
        self._stopping = True
        self._wake.set()

    async def run(self) -> None:
        """Until every execution is settled and every evaluation reported, or until `stop`."""
        await self._recover()
        reading = asyncio.create_task(self._read())
        try:
            while not self._stopping and not await self._advance():
                waits = [asyncio.ensure_future(self._wake.wait()), reading, *(task for task, _ in self._running.values())]
                await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
                waits[0].cancel()
                self._wake.clear()
                self._raise_failures(reading)
        finally:
            self._stopping = True
            await self._call_off(lambda _: True)
            await asyncio.gather(reading, return_exceptions=True)
            self._follower.close()

    def _raise_failures(self, reading: asyncio.Task[None]) -> None:
        """A reader or an execution that broke ends the runner; its supervisor starts the next."""
        if reading.done():
            reading.result()
        for name, (task, _) in list(self._running.items()):
            if task.done():
                del self._running[name]
                task.result()

    # What the log says

    async def _recover(self) -> None:
        """Read what stands on the log; end what a dead runner had started."""
        for record in await asyncio.to_thread(lambda: list(self._log.read("executions"))):
            self._board.observe(record.event)
        self._follower = self._log.follow(FOLLOWED)
        self._follower.mark_end()
        while not self._follower.at_end():
            self._observe(await asyncio.to_thread(self._follower.poll, 0.2))
        for orphan in self._board.of_state(State.STARTED):
            await self._outside.proxy.close_execution(orphan.execution)
            lost = Discarded(execution=orphan.execution, reason=DiscardReason.LOST, final=False, wall_us=0, detail=RESTART)
            await self._append(lost)
        await self._dispatch(list(self._board.missing()))
        for name in self._board.evaluations():
            if name not in self._scores.reported:
                self._evaluations.append(self._begun(name))

    def _begun(self, name: str) -> Evaluation:
        """An evaluation that a dead runner opened, as far as it was dispatched."""
        places = self._board.of_evaluation(name)
        first = places[0].latest
        tasks = tuple(dict.fromkeys((p.latest.source, p.latest.query) for p in places))
        return Evaluation(name, first.split, first.weight_version, tasks, first.group_size)

    async def _read(self) -> None:
        while not self._stopping:
            if records := await asyncio.to_thread(self._follower.poll, _POLL_S):
                self._observe(records)
                self._wake.set()

    def _observe(self, records: Iterable[Recorded]) -> None:
        for record in records:
            match record.event:
                case Published() as event if event.version > self._published and self._settings.plan.for_samplers(event.version):
                    self._earlier, self._published = self._published, event.version
                case StepCommitted() as event:
                    self._committed = max(self._committed, event.step)
                case EvaluationReported() as event:
                    self._scores.close(event.evaluation)
                case GroupAdmitted() as event:
                    self._note_rate(event)
                case Scored() | EvaluationFailed() as event:
                    self._scores.note(event)

    def _note_rate(self, event: GroupAdmitted) -> None:
        if (group := self._board.groups.get(event.group)) is not None:
            self._rates[group.source, group.query] = event.mean

    async def _append(self, event: Event) -> None:
        await asyncio.wrap_future(self._log.append(event))
        self._board.observe(event)

    # What follows from it

    async def _advance(self) -> bool:
        """Dispatch and start what is due. Returns whether the run is over for the runner."""
        await self._dispatch(self._again(last) for last in list(self._board.retries()))
        await self._evaluate()
        over = self._over
        if over:
            await self._cancel_training()
        elif not self._evaluations and self._order is not None:
            await self._dispatch(self._training())
        self._start_what_fits()
        return over and not self._evaluations and not self._running and not self._board.open(evaluation=False)

    def _again(self, attempt: Dispatched) -> Dispatched:
        """Another attempt samples from what is published now; one of an evaluation stays with its version."""
        return attempt if attempt.evaluation is not None else replace(attempt, weight_version=self._published)

    @property
    def _over(self) -> bool:
        """All steps are committed; where the last weights are to be evaluated, they have been published too."""
        steps = self._settings.plan.steps
        awaited = self._published < steps and self._settings.evaluation.due(steps, self._published, steps)
        return self._committed >= steps and not awaited

    def _training(self) -> list[Dispatched]:
        order, settings = self._order, self._settings
        if order is None:
            return []
        keep = FILTERS[settings.task_filter]
        shape = GroupShape(settings.group_size, settings.harness.name)
        return list(
            training_groups(
                settings.plan, shape, self._board.next_group, self._board.next_draw, self._published,
                lambda position: draw(order, position, self._rates, keep),
            )
        )  # fmt: skip

    async def _dispatch(self, executions: Iterable[Dispatched]) -> None:
        """Log them in order; acknowledged together."""
        batch = list(executions)
        waiting = [asyncio.wrap_future(self._log.append(event)) for event in batch]
        await asyncio.gather(*waiting)
        for event in batch:
            self._board.observe(event)

    async def _evaluate(self) -> None:
        """Open the evaluations that are due at this version, report those that are complete."""
        plan, settings = self._settings.evaluation, self._settings
        for split in plan.due(self._published, self._earlier, settings.plan.steps):
            tasks = evaluation_tasks(self._catalog, split, plan.tasks, settings.seed)
            await self.open_evaluation(plan_evaluation(split, tasks, plan.samples, self._published))
        for evaluation in list(self._evaluations):
            await self._report(evaluation)

    async def open_evaluation(self, evaluation: Evaluation) -> None:
        """Dispatch it, unless the log has it already."""
        if evaluation.name in self._scores.reported | self._opened:
            return
        if not evaluation.tasks:
            raise DataError(f"split {evaluation.split!r} has no tasks to evaluate on: add a [[data]] source of that split")
        self._opened.add(evaluation.name)
        self._evaluations = [e for e in self._evaluations if e.name != evaluation.name] + [evaluation]
        known = set(self._board.groups)
        await self._dispatch(e for e in evaluation.groups(self._settings.harness.name) if e.group not in known)

    async def _report(self, evaluation: Evaluation) -> None:
        """Log the figures once every execution has a score or has left."""
        places, scores = self._board.of_evaluation(evaluation.name), self._scores.of(evaluation.name)
        if any(p.state is not State.SETTLED or (p.finished and p.latest.execution not in scores) for p in places):
            return
        rewards: dict[str, list[float]] = {}
        for place in places:
            of_task = rewards.setdefault(f"{place.latest.source}/{place.latest.query}", [])
            reward = scores[place.latest.execution] if place.finished else None
            of_task.extend([] if reward is None else [reward])
        failed = len(places) - sum(map(len, rewards.values()))
        bounds = self._settings.reward_bounds
        await self._append(report(evaluation.name, evaluation.split, evaluation.version, rewards, failed, bounds))
        self._scores.close(evaluation.name)
        self._evaluations.remove(evaluation)

    # Running executions

    def _start_what_fits(self) -> None:
        for dispatched in self._board.of_state(State.DISPATCHED):
            if len(self._running) >= self._settings.max_concurrent:
                return
            if dispatched.execution not in self._running:
                cancelled = asyncio.Event()
                self._running[dispatched.execution] = asyncio.create_task(self._execute(dispatched, cancelled)), cancelled

    async def _execute(self, dispatched: Dispatched, cancelled: asyncio.Event) -> None:
        outcome: Finished | Discarded
        try:
            task = self._catalog.find(dispatched.split, dispatched.source, dispatched.query)
        except DataError as error:
            reason = DiscardReason.ENVIRONMENT
            outcome = Discarded(execution=dispatched.execution, reason=reason, final=True, wall_us=0, detail=str(error))
        else:
            outcome = await Execution(dispatched.execution, task, self._outside, self._append, cancelled).outcome()
        await self._append(outcome if isinstance(outcome, Finished) else self._with_budget(dispatched, outcome))

    def _with_budget(self, dispatched: Dispatched, outcome: Discarded) -> Discarded:
        """Whether another attempt follows."""
        if outcome.reason is DiscardReason.CANCELLED and self._stopping:
            return replace(outcome, reason=DiscardReason.LOST, final=False, detail=RESTART)
        before = self._board.places[dispatched.group, dispatched.index].before[outcome.reason]
        return replace(outcome, final=not tried_again(outcome.reason, before, self._settings.attempts))

    async def _call_off(self, which: Callable[[str], bool]) -> None:
        """Cancel running executions and wait until each has logged its end."""
        chosen = [(task, cancelled) for name, (task, cancelled) in self._running.items() if which(name)]
        for _, cancelled in chosen:
            cancelled.set()
        for ended in await asyncio.gather(*(task for task, _ in chosen), return_exceptions=True):
            if isinstance(ended, Exception):
                logger.error("an execution could not log its end; the next runner counts it as lost: %s", ended)

    async def _cancel_training(self) -> None:
        """The last step is done: what was dispatched beyond it is not waited for."""
        await self._call_off(lambda name: self._board.evaluation_of(name) is None)
        for left in self._board.of_state(State.DISPATCHED):
            if left.evaluation is None and left.execution not in self._running:
                reason, detail = DiscardReason.CANCELLED, "the last step was committed"
                await self._append(Discarded(execution=left.execution, reason=reason, final=True, wall_us=0, detail=detail))

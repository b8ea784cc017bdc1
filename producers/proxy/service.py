"""The executions that this proxy owns: opening calls for them, and closing them.

writes    model-calls (proxy-owns, execution-closed), tool-events
promises  one owner an execution, by a logged epoch that stands before its records; a closed execution takes no call,
          and its closing counts exactly the records on the log
"""

from __future__ import annotations

import asyncio
import os
import time
from collections import defaultdict
from collections.abc import Coroutine, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar
from uuid import uuid4

from gyre_engine.events import derived_id
from gyre_engine.events.calls import ExecutionClosed, ProxyOwns
from gyre_engine.events.executions import ToolReturned, UnknownExecution, place_of
from gyre_engine.sampling.sglang import SGLangEngine
from gyre_engine.trees.conversation import Author
from producers.proxy.call import SHOWN, Call, Desk, new_call
from producers.proxy.exchange import Ask, execution_over, unavailable
from producers.proxy.execution import Execution
from producers.proxy.histories import Histories
from producers.proxy.models import Models
from producers.proxy.open_calls import OpenCalls
from producers.proxy.router import Connect
from producers.proxy.settings import ProxySettings
from producers.proxy.shared_call import SharedCall
from producers.proxy.size import prompt_length
from producers.proxy.upstream import UpstreamCall, UpstreamClient

T = TypeVar("T")

CLOSE_GRACE_S = 5.0


@dataclass(frozen=True, slots=True)
class Closed:
    """What a closed execution came to."""

    held_us: int
    calls: int
    tokens: int


class Service:
    """State: an `Execution` each that is open, with its open calls and at most 16 answers that no client took; the counts of each
    closed one (~200 bytes), the newest attempt at each place, and the last history of each execution within a budget of bytes."""

    def __init__(
        self,
        settings: ProxySettings,
        desk: Desk,
        *,
        connect: Connect = SGLangEngine,
        environment: Mapping[str, str] = os.environ,
    ) -> None:
        self.settings = settings
        self.desk = desk
        self.models = Models(settings.models, desk, connect, environment, limit_s=settings.wait_limit_s)
        self.histories = Histories()
        self.executions: dict[str, Execution] = {}
        self.open: defaultdict[str, OpenCalls] = defaultdict(OpenCalls)
        self.closed: dict[str, Closed] = {}
        self._over: set[str] = set()
        self._newest: dict[tuple[str, int], int] = {}
        self._arrivals: dict[str, list[int]] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._closings: dict[str, asyncio.Task[Closed]] = {}
        self.counts = {"calls": 0, "joined": 0, "refused": 0, "unusable": 0}

    async def open_call(self, execution_id: str, ask: Ask) -> SharedCall:
        """The call that answers a request: a new one, or the one that the same body has asked for already. Raises ProxyError."""
        model = self.models.of(ask.model)
        self._admit(execution_id)
        with self._arrival(execution_id) as arrived:
            await self.desk.outbox.ready(self.settings.wait_limit_s)
            await self._wait_for_deserted(execution_id, ask.digest)
            held_us = (time.monotonic_ns() - arrived) // 1000
        execution = self._execution(self._admit(execution_id))
        call = self.open[execution_id].joinable(ask.digest)
        if call is None:
            call = self._start(execution, ask, model, held_us)
            self.counts["calls"] += 1
        else:
            self.counts["joined"] += 1
        call.listeners += 1
        return call

    def count(self, execution_id: str, ask: Ask) -> int:
        """Tokens of the prompt that a request would make, as the policy's tokenizer counts; nothing is opened or kept.

        Raises ProxyError.
        """
        self.models.of(ask.model)
        self._admit(execution_id)
        known = self.executions.get(execution_id) or Execution(execution_id, 1, self.desk.rendering.thinking)
        return prompt_length(known, ask, self.desk.rendering, self.settings.context_limit)

    async def close(self, execution_id: str) -> Closed:
        """Refuse new calls, abort open ones, and log how many records there are. Raises ProxyError (503) while the log is away."""
        if execution_id in self.closed:
            return self.closed[execution_id]
        self._over.add(execution_id)
        closing = self._closings.get(execution_id)
        if closing is None:
            closing = self._closings[execution_id] = self._spawn(self._close(self._execution(execution_id)))
        try:
            return await asyncio.wait_for(asyncio.shield(closing), self.settings.wait_limit_s)
        except TimeoutError:
            raise unavailable("log_unavailable", f"the closing of {execution_id} waits for the event log") from None

    def retire(self, execution_id: str) -> None:
        """The execution has its terminal event: refuse its key, and close it where nobody has."""
        self._over.add(execution_id)
        if execution_id in self.executions:
            self._spawn(self.close(execution_id))

    def dispatched(self, execution_id: str) -> None:
        """A new attempt supersedes the earlier ones at its place."""
        if found := _attempt(execution_id):
            place, attempt = found
            self._newest[place] = max(attempt, self._newest.get(place, 0))

    def held_us(self, execution_id: str) -> int:
        """Microseconds that an execution's agent was held up so far."""
        if execution_id in self.closed:
            return self.closed[execution_id].held_us
        execution = self.executions.get(execution_id)
        arriving_us = sum(time.monotonic_ns() - arrived for arrived in self._arrivals.get(execution_id, ())) // 1000
        return arriving_us + (execution.held_us + self.open[execution_id].held_us if execution else 0)

    def cancel_all(self) -> None:
        """Abort what runs; its clients are told to ask again."""
        for calls in self.open.values():
            for call in calls:
                call.cancel.set()

    async def settle(self, timeout: float) -> None:
        """Abort what runs, and wait until what is known stands on the log."""
        self.cancel_all()
        if self._tasks:
            await asyncio.wait(set(self._tasks), timeout=timeout)
        await self.desk.outbox.settle(timeout)

    def _admit(self, execution_id: str) -> str:
        found = _attempt(execution_id)
        superseded = found is not None and found[1] < self._newest.get(found[0], 0)
        if execution_id in self._over or execution_id in self.closed or superseded:
            self.counts["refused"] += 1
            raise execution_over(execution_id)
        return execution_id

    @contextmanager
    def _arrival(self, execution_id: str) -> Iterator[int]:
        """The agent is held up from here on, also before there is a call that counts it."""
        arrived = time.monotonic_ns()
        self._arrivals.setdefault(execution_id, []).append(arrived)
        try:
            yield arrived
        finally:
            self._arrivals[execution_id].remove(arrived)
            if not self._arrivals[execution_id]:
                del self._arrivals[execution_id]

    async def _wait_for_deserted(self, execution_id: str, digest: bytes) -> None:
        """Until calls have ended that all their clients have left: a new prompt is to go on from their records, and whoever asks
        again is to get an answer. A call that runs is joined at once."""
        calls = self.open.get(execution_id)
        twin = calls.joinable(digest) if calls else None
        if calls is None or (twin is not None and not twin.cancel.is_set()):
            return
        ending = {call.task for call in calls if call.cancel.is_set() and call.task is not None and not call.task.done()}
        if ending:
            await asyncio.wait(ending, timeout=self.settings.wait_limit_s)

    def _execution(self, execution_id: str) -> Execution:
        if execution_id not in self.executions:
            self._own(Execution(execution_id, 1, self.desk.rendering.thinking))
        return self.executions[execution_id]

    def _own(self, execution: Execution) -> None:
        """Own a new execution; that is logged before any record of it."""
        self.executions[execution.id] = execution
        owns = ProxyOwns(execution=execution.id, owner_epoch=execution.epoch, proxy=self.settings.name)
        event_id = uuid4().hex
        self._spawn(self.desk.outbox.put(execution.id, lambda: (owns, event_id), lambda: None))

    def _start(self, execution: Execution, ask: Ask, model: Desk | UpstreamClient, held_us: int) -> SharedCall:
        """A new call, which runs. held_us: how long it waited for the log before."""
        call: SharedCall
        if isinstance(model, UpstreamClient):
            execution.held_us += held_us
            call = UpstreamCall(execution, ask, model, self.desk.outbox)
        else:
            call = new_call(execution, ask, model, self.settings, held_us)
        self._returned(execution, ask)
        self.open[execution.id].keep(ask.digest, call)
        self.histories.keep(execution.id, ask.history)
        call.task = self._spawn(call.run())
        if isinstance(call, Call):
            call.task.add_done_callback(partial(self._judge, call))
        return call

    def _judge(self, call: Call, _: asyncio.Task[None]) -> None:
        """An engine's answer that does not add up is recorded, never trained on, and counted."""
        self.counts["unusable"] += call.sampled.broken is not None

    def _returned(self, execution: Execution, ask: Ask) -> None:
        """Tell the results of tools that this request brings for the first time."""
        if not execution.unanswered_tools:
            return
        for message in reversed(ask.messages):
            if message.author is Author.ASSISTANT:
                return
            if message.answers in execution.unanswered_tools:
                execution.unanswered_tools.discard(message.answers)
                event = ToolReturned(
                    execution=execution.id,
                    tool_call=message.answers,
                    source="proxy",
                    content=message.text[:SHOWN],
                    nbytes=len(message.text.encode("utf-8", "replace")),
                )
                event_id = derived_id((execution.id, message.answers), "tool-returned", 1)
                self.desk.outbox.tell(event, event_id)

    async def _close(self, execution: Execution) -> Closed:
        calls = [call for call in self.open[execution.id] if call.task is not None]
        for call in calls:
            call.cancel.set()
        if calls:
            await asyncio.wait({call.task for call in calls if call.task is not None})
        await self.desk.outbox.settle(CLOSE_GRACE_S)

        def make() -> tuple[ExecutionClosed, str]:
            event = ExecutionClosed(
                execution=execution.id,
                owner_epoch=execution.epoch,
                calls=execution.calls,
                last_call=execution.last_call,
                held_us=execution.held_us,
                errors=execution.errors,
            )
            return event, derived_id((execution.id, execution.last_call or ""), "execution-closed", 1)

        await self.desk.outbox.put(execution.id, make, lambda: None)
        return self._forget(execution)

    def _forget(self, execution: Execution) -> Closed:
        counts = Closed(execution.held_us, execution.calls, execution.tokens)
        self.closed[execution.id] = counts
        self.executions.pop(execution.id, None)
        self.open.pop(execution.id, None)
        self.histories.forget(execution.id)
        self._closings.pop(execution.id, None)
        self.models.forget(execution.id)
        self.desk.outbox.forget(execution.id)
        return counts

    def _spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


def _attempt(execution_id: str) -> tuple[tuple[str, int], int] | None:
    """The place of a run's group and which attempt at it; an execution that nobody dispatched may have another name."""
    try:
        group, index, attempt = place_of(execution_id)
    except UnknownExecution:
        return None
    return (group, index), attempt

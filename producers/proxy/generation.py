"""One call's sampling, over as many engines as it takes.

An engine that leaves sampling aborts what it runs and returns what it has; the call goes on elsewhere with prompt and
partial output as input, or begins anew (`schedule.interrupted`). The agent sees one slow call.

promises  every sampled id is kept once, with its log-probability, version and cell, or counted as discarded; what the
          agent was held up is counted; no wait without progress is longer than the limit; no call begins anew for ever
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import re
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import cast

import numpy as np

from gyre_engine.events import now_us
from gyre_engine.events.calls import WeightSpan
from gyre_engine.events.codec import Int32
from gyre_engine.experts import Experts
from gyre_engine.sampling.port import (
    Chunk,
    ContextTooLong,
    EngineError,
    FinishReason,
    GenerateRequest,
    MismatchedOutput,
    SamplingParams,
)
from producers.proxy.exchange import ProxyError, too_long, unavailable
from producers.proxy.router import Lease, Router

ABORT_GRACE_S = 1.0
"""How long an aborted engine may take to hand over what it has sampled."""
AWAY_GRACE_S = 5.0
"""How long a call stays without a token on a cell that does not answer any more; then it goes on elsewhere."""
RETRY_FIRST_S, RETRY_MOST_S = 0.05, 1.0
ANEW_MOST = 3
"""How often a call may begin anew; then it goes on, or switches that come faster than it ends would hold it up for ever."""


@dataclass(slots=True)
class Sampled:
    """What a call has sampled so far, and what it cost. Times in microseconds; `discarded`: ids that were thrown away."""

    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    spans: list[WeightSpan] = field(default_factory=list)
    cached: int = 0
    engine_calls: int = 0
    first_token_at: int = 0
    held_us: int = 0
    broken: str | None = None
    discarded: int = 0
    anew: int = 0
    routed: bytearray = field(default_factory=bytearray)
    """A record of routed experts, from the job's `routed_from` on."""
    _held_since: int | None = None
    _began: tuple[int, int] | None = None
    """When the first hold began, and what stood in `held_us` then."""

    def take(self, chunk: Chunk, cell: str) -> None:
        """Keep what one chunk brings."""
        if self.engine_calls == 1:
            self.cached = max(self.cached, chunk.cached_tokens)
        self.routed += chunk.routed
        if not chunk.output_ids:
            return
        self.serve()
        self.first_token_at = self.first_token_at or now_us()
        version = version_number(chunk.weight_version)
        if not self.spans or (self.spans[-1].version, self.spans[-1].cell) != (version, cell):
            self.spans.append(WeightSpan(len(self.ids), version, cell))
        self.ids += chunk.output_ids
        self.logprobs += chunk.logprobs
        if not all(math.isfinite(logprob) for logprob in chunk.logprobs):
            self.broken = "a log-probability is not finite"

    def hold(self) -> None:
        """From here on the agent is held up by the proxy."""
        self._held_since = self._held_since or time.monotonic_ns()
        self._began = self._began or (self._held_since, self.held_us)

    def serve(self) -> None:
        """From here on it is served."""
        self.held_us, self._held_since = self.held_so_far, None

    def begin_anew(self) -> None:
        """Throw away what was sampled, but for its count; the agent is as far as if it had been held up from the first hold on."""
        self.discarded, self.anew = self.discarded + len(self.ids), self.anew + 1
        self.ids, self.logprobs, self.spans, self.first_token_at, self.broken = [], [], [], 0, None
        self.routed.clear()
        if self._began is not None:
            self._held_since, self.held_us = self._began

    @property
    def held_so_far(self) -> int:
        """Microseconds held up, the present wait included."""
        waiting = 0 if self._held_since is None else (time.monotonic_ns() - self._held_since) // 1000
        return self.held_us + waiting


def version_number(name: str) -> int:
    """The weight version in an engine's name for it (`7`, `v7`); 0, the initial weights, where it has none (`default`)."""
    digits = re.search(r"\d+$", name)
    return int(digits.group()) if digits else 0


@dataclass(frozen=True, slots=True)
class Job:
    """What to sample. prompt: int32[n]; wait_limit_s bounds each wait without progress.

    experts:     the model's, where engines are asked which of them computed the tokens from position `routed_from` on
    """

    execution: str
    rid: str
    prompt: Int32
    params: SamplingParams
    context_limit: int
    wait_limit_s: float
    experts: Experts | None = None
    routed_from: int = 0

    def unrouted(self, sampled: Sampled) -> int | None:
        """From where on an engine is to tell the experts: what an earlier one told of this call holds."""
        return None if self.experts is None else self.routed_from + len(sampled.routed) // self.experts.width


class _Patience:
    """How long a call may go on without a new token, with waits between engines that bring none which grow until one comes."""

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self.renew()

    @property
    def left(self) -> float:
        """Seconds, negative once it is over."""
        return self._since + self._limit_s - time.monotonic()

    def renew(self) -> None:
        """A token has come."""
        self._retry, self._since = RETRY_FIRST_S, time.monotonic()

    async def wait(self, cancel: asyncio.Event) -> None:
        """Before another engine is asked; `cancel` ends it."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(cancel.wait(), self._retry)
        self._retry = min(2 * self._retry, RETRY_MOST_S)


def never() -> bool:
    """Every call goes on."""
    return False


async def sample(
    router: Router,
    job: Job,
    sampled: Sampled,
    cancel: asyncio.Event,
    heard: Callable[[Chunk], None],
    anew: Callable[[], bool] = never,
) -> FinishReason:
    """Sample until the model stops, the length is reached, or `cancel` is set (ABORT). `heard` gets each chunk.

    anew: asked when an engine left the call unfinished: whether what was sampled is thrown away, what was heard with it

    Raises ProxyError where no engine answers within the limit, the context is full, or an engine's answer does not add up.
    """
    patience, source = _Patience(job.wait_limit_s), ""
    sampled.hold()
    while not cancel.is_set():
        lease = await _lease(router, job, sampled, cancel, source, patience.left)
        if lease is None:
            break
        source, before = lease.cell, len(sampled.ids)
        finish, problem = await _tried(router, lease, job, sampled, cancel, heard)
        if finish in (FinishReason.STOP, FinishReason.LENGTH):
            return finish
        _give_up_on(problem, job, sampled)
        sampled.hold()
        if grew := len(sampled.ids) > before:
            patience.renew()
        if len(sampled.ids) >= job.params.max_tokens:
            return FinishReason.LENGTH
        if patience.left < 0:
            raise unavailable("no_engine_answered", f"no engine answered within {job.wait_limit_s:.0f} s: {problem}")
        if sampled.ids and sampled.anew < ANEW_MOST and not cancel.is_set() and anew():
            sampled.begin_anew()
        if problem is not None or not grew:
            router.avoid(lease)
            await patience.wait(cancel)
    sampled.serve()
    return FinishReason.ABORT


async def _lease(router: Router, job: Job, sampled: Sampled, cancel: asyncio.Event, source: str, left: float) -> Lease | None:
    """An engine, or None where the call was cancelled while it waited. left: seconds of the wait that it may still take."""
    lease = (None if source else router.at_once(job.execution)) or await _waited_for(router, job, source, cancel, left)
    if lease is None:
        return None
    if not source:
        sampled.serve()
    sampled.engine_calls += 1
    return lease


async def _waited_for(router: Router, job: Job, source: str, cancel: asyncio.Event, left: float) -> Lease | None:
    waiting = asyncio.ensure_future(router.acquire(job.execution, source=source, timeout=max(left, 0.0)))
    watch = asyncio.ensure_future(cancel.wait())
    await asyncio.wait({waiting, watch}, return_when=asyncio.FIRST_COMPLETED)
    watch.cancel()
    if waiting.done():
        return waiting.result()
    waiting.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        router.release(await waiting)
    return None


async def _tried(
    router: Router, lease: Lease, job: Job, sampled: Sampled, cancel: asyncio.Event, heard: Callable[[Chunk], None]
) -> tuple[FinishReason | None, EngineError | None]:
    """How one engine ended the call, or what it failed with; the lease is given back."""
    try:
        return await _on_one_engine(lease, job, sampled, cancel, heard), None
    except EngineError as error:
        return None, error
    finally:
        router.release(lease)


async def _on_one_engine(
    lease: Lease, job: Job, sampled: Sampled, cancel: asyncio.Event, heard: Callable[[Chunk], None]
) -> FinishReason | None:
    done = len(sampled.ids)
    prompt = np.concatenate([job.prompt, np.asarray(sampled.ids, dtype=np.int32)]) if done else job.prompt
    request = GenerateRequest(
        f"{job.rid}.{sampled.engine_calls}",
        cast(Sequence[int], prompt),
        replace(job.params, max_tokens=job.params.max_tokens - done),
        routed_from=job.unrouted(sampled),
    )
    finish = None
    async with _left_by(cancel, lease, request.rid, sampled), contextlib.aclosing(lease.engine.generate(request)) as chunks:
        async for chunk in chunks:
            sampled.take(chunk, lease.cell)
            heard(chunk)
            finish = chunk.finish_reason
    return finish


@contextlib.asynccontextmanager
async def _left_by(cancel: asyncio.Event, lease: Lease, rid: str, sampled: Sampled) -> AsyncIterator[None]:
    """Once `cancel` is set the engine is told to abort, and what is inside may go on for a moment, to hear what it has. A cell that is
    away is told nothing: what is inside ends once it has brought nothing for a while.
    """
    try:
        async with asyncio.timeout(None) as limit:
            watches = [
                asyncio.ensure_future(_abort(cancel, lease, rid, limit)),
                asyncio.ensure_future(_leave(lease, sampled, limit)),
            ]
            try:
                yield
            finally:
                for watch in watches:
                    watch.cancel()
    except TimeoutError:
        if not limit.expired():
            raise


async def _abort(cancel: asyncio.Event, lease: Lease, rid: str, limit: asyncio.Timeout) -> None:
    await cancel.wait()
    with contextlib.suppress(EngineError, TimeoutError):
        await asyncio.wait_for(lease.engine.abort(rid), ABORT_GRACE_S)
    _end(limit, ABORT_GRACE_S)


async def _leave(lease: Lease, sampled: Sampled, limit: asyncio.Timeout) -> None:
    """The agent is held up from the moment that its engine is away; a token says that it was not."""
    while True:
        await lease.away.wait()
        before = len(sampled.ids)
        sampled.hold()
        await asyncio.sleep(AWAY_GRACE_S)
        if lease.away.is_set() and len(sampled.ids) == before:
            _end(limit, 0.0)
            return


def _end(limit: asyncio.Timeout, seconds: float) -> None:
    with contextlib.suppress(RuntimeError):  # it has ended meanwhile
        limit.reschedule(asyncio.get_running_loop().time() + seconds)


def _give_up_on(problem: EngineError | None, job: Job, sampled: Sampled) -> None:
    """Raise where asking another engine is useless."""
    if isinstance(problem, ContextTooLong):
        raise too_long(problem.length, min(problem.limit, job.context_limit)) from problem
    if isinstance(problem, MismatchedOutput):
        sampled.broken = str(problem)
        raise ProxyError(502, "engine_answer_unusable", str(problem), kind="server_error") from problem

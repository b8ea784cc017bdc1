"""An engine that plays given outputs at given moments: for tests, benchmarks of what stands around an engine, and demonstrations.

promises  all that the port promises but sampling: versions, aborts, pauses, limits, counts and prefix hits are an engine's;
          nothing sleeps: where a Gate is given, ids come exactly as it lets them.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any

from gyre_engine.sampling.port import (
    Chunk,
    ContextTooLong,
    EngineError,
    EngineNotServing,
    EngineStats,
    FinishReason,
    GenerateRequest,
    InFlight,
    WeightsUnreadable,
)

REMEMBERED = 256  # finished sequences whose prefixes count as cached


@dataclass(frozen=True, slots=True)
class Script:
    """One answer.

    output_ids:  as they shall be delivered, a stop token included
    logprobs:    one each; `scripted_logprob` of each id where not given
    piece:       ids a chunk; all at once where not given
    error:       raised after the ids instead of finishing
    """

    output_ids: tuple[int, ...]
    logprobs: tuple[float, ...] | None = None
    finish_reason: FinishReason = FinishReason.STOP
    piece: int | None = None
    error: EngineError | None = None

    @classmethod
    def of_text(cls, tokenizer: Any, text: str, *end: int, piece: int | None = None) -> Script:
        """A text through a `tokenizers.Tokenizer`, followed by the ids of `end` (a stop token)."""
        return cls((*tokenizer.encode(text, add_special_tokens=False).ids, *end), piece=piece)


Play = Callable[[GenerateRequest], Script]


def scripted_logprob(token: int) -> float:
    """Differs from id to id, so that a shift shows."""
    return -(1 + token % 97) / 32


class Gate:
    """Lets ids pass: none at first; `release` a number for each request, or `open` for all that come."""

    def __init__(self) -> None:
        self._changed = asyncio.Condition()
        self._released: float = 0

    async def release(self, count: int) -> None:
        """Let every request have `count` ids more than before."""
        async with self._changed:
            self._released += count
            self._changed.notify_all()

    async def open(self) -> None:
        """Let everything pass."""
        async with self._changed:
            self._released = float("inf")
            self._changed.notify_all()

    async def passed(self, played: int) -> int | None:
        """Wait until more than `played` ids may have passed; how many may have, None for any number."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._released > played)
            return None if self._released == float("inf") else int(self._released)


@dataclass(slots=True, eq=False)
class _Playing:
    """A request in flight: what it has played, and whether it was told to end."""

    request: GenerateRequest
    script: Script
    cached: int
    played: int = 0
    stopped: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def length(self) -> int:
        return len(self.request.input_ids) + self.played


class ScriptedEngine:
    """An InferenceEngine. `play` gives each request its script, or the scripts are taken in turn."""

    def __init__(
        self,
        play: Play | Iterable[Script],
        *,
        version: str = "v1",
        gate: Gate | None = None,
        max_context: int = 1 << 20,
        kv_capacity: int = 1 << 24,
    ) -> None:
        scripts = None if callable(play) else iter(play)
        self._play: Play = play if callable(play) else lambda _: next(scripts)  # type: ignore[arg-type]
        self._version, self._gate = version, gate
        self._max_context, self._kv_capacity = max_context, kv_capacity
        self._running = asyncio.Event()
        self._running.set()
        self._closed = False
        self._playing: dict[str, _Playing] = {}
        self._past: deque[tuple[int, ...]] = deque(maxlen=REMEMBERED)
        self._generated = self._prefilled = self._hits = 0
        self.requests: list[GenerateRequest] = []
        self.aborted: list[str] = []

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[Chunk]:
        """See InferenceEngine."""
        playing = self._begin(request)
        try:
            async for chunk in self._chunks(playing):
                yield chunk
        finally:
            del self._playing[request.rid]
            if playing.played < len(playing.script.output_ids):
                self.aborted.append(request.rid)
            self._past.append((*request.input_ids, *playing.script.output_ids[: playing.played]))

    async def abort(self, rid: str | None) -> None:
        """See InferenceEngine."""
        for playing in list(self._playing.values()):
            if rid is None or playing.request.rid == rid:
                playing.stopped.set()

    async def pause(self, *, abort: bool) -> None:
        """See InferenceEngine."""
        self._running.clear()
        if abort:
            await self.abort(None)

    async def drain(self) -> tuple[InFlight, ...]:
        """See InferenceEngine."""
        found = tuple(InFlight(rid, playing.length) for rid, playing in self._playing.items())
        await self.pause(abort=True)
        return found

    async def release_memory(self) -> None:
        """See InferenceEngine. It holds none but what it remembers of past calls."""
        self._past.clear()

    async def reclaim_memory(self) -> None:
        """See InferenceEngine."""

    async def resume(self) -> None:
        """See InferenceEngine."""
        self._running.set()

    async def load_weights(self, folder: str | PathLike[str], version: str) -> None:
        """See InferenceEngine. The folder must exist; what it holds does not matter."""
        if not Path(folder).is_dir():
            raise WeightsUnreadable(f"there is no folder {folder}: the weights in use stay")
        self._version = version
        self._past.clear()

    async def score(self, input_ids: Sequence[int], *, reuse: int = 0) -> tuple[float, ...]:
        """See InferenceEngine: `scripted_logprob` of each id."""
        shared = tuple(input_ids[: min(reuse, len(input_ids) - 1)])
        cached = max((_shared(past, shared) for past in self._past), default=0)
        if shared:
            self._past.append(shared)
        return tuple(scripted_logprob(token) for token in input_ids[1 + cached :])

    async def stats(self) -> EngineStats:
        """See InferenceEngine."""
        return EngineStats(
            running=len(self._playing),
            waiting=0,
            kv_tokens_used=min(self._kv_capacity, sum(playing.length for playing in self._playing.values())),
            kv_tokens_capacity=self._kv_capacity,
            generated_tokens=self._generated,
            prefill_tokens=self._prefilled,
            cache_hit_tokens=self._hits,
            weight_version=self._version,
            max_context=self._max_context,
            paused=not self._running.is_set(),
        )

    async def close(self) -> None:
        """See InferenceEngine."""
        self._closed = True
        await self.abort(None)

    def _begin(self, request: GenerateRequest) -> _Playing:
        if self._closed or not self._running.is_set():
            raise EngineNotServing("the scripted engine is paused or closed: ask another one, or this one after it resumed")
        if len(request.input_ids) >= self._max_context:
            raise ContextTooLong(len(request.input_ids), self._max_context)
        if request.rid in self._playing:
            raise ValueError(f"request {request.rid} is already in flight: a rid names one request")
        self.requests.append(request)
        cached = max((_shared(past, request.input_ids) for past in self._past), default=0)
        cached = min(cached, len(request.input_ids) - 1)
        self._hits += cached
        self._prefilled += len(request.input_ids) - cached
        playing = self._playing[request.rid] = _Playing(request, self._script(request), cached)
        return playing

    def _script(self, request: GenerateRequest) -> Script:
        """The script, cut where a stop token, the request's length or the context ends it."""
        script = _until(self._play(request), frozenset(request.params.stop_token_ids))
        most = min(request.params.max_tokens, self._max_context - len(request.input_ids))
        if len(script.output_ids) <= most:
            return script
        logprobs = None if script.logprobs is None else script.logprobs[:most]
        return Script(script.output_ids[:most], logprobs, FinishReason.LENGTH, script.piece)

    async def _chunks(self, playing: _Playing) -> AsyncIterator[Chunk]:
        total = len(playing.script.output_ids)
        while playing.played < total:
            end = await self._next_end(playing)
            if end is None:
                yield self._chunk(playing, playing.played, FinishReason.ABORT)
                return
            yield self._chunk(playing, end, playing.script.finish_reason if end == total and not playing.script.error else None)
        if playing.script.error:
            raise playing.script.error
        if not total:
            yield self._chunk(playing, 0, playing.script.finish_reason)

    async def _next_end(self, playing: _Playing) -> int | None:
        """How far to play next, once the gate and a pause allow it; None when aborted."""
        stop = asyncio.ensure_future(playing.stopped.wait())
        turn = asyncio.ensure_future(self._turn(playing))
        try:
            await asyncio.wait([stop, turn], return_when=asyncio.FIRST_COMPLETED)
            return None if playing.stopped.is_set() else turn.result()
        finally:
            stop.cancel()
            turn.cancel()

    async def _turn(self, playing: _Playing) -> int:
        total = len(playing.script.output_ids)
        allowed = await self._gate.passed(playing.played) if self._gate else None
        await self._running.wait()
        return min(total, playing.played + (playing.script.piece or total), total if allowed is None else allowed)

    def _chunk(self, playing: _Playing, end: int, reason: FinishReason | None) -> Chunk:
        ids = playing.script.output_ids[playing.played : end]
        given = playing.script.logprobs
        logprobs = tuple(map(scripted_logprob, ids)) if given is None else given[playing.played : end]
        self._generated += len(ids)
        playing.played = end
        return Chunk(ids, logprobs, self._version, reason, playing.cached)


def _until(script: Script, stops: frozenset[int]) -> Script:
    """The script up to its first stop token, that included."""
    end = next((at + 1 for at, token in enumerate(script.output_ids) if token in stops), None)
    if end is None or end == len(script.output_ids):
        return script
    logprobs = None if script.logprobs is None else script.logprobs[:end]
    return Script(script.output_ids[:end], logprobs, FinishReason.STOP, script.piece)


def _shared(one: Sequence[int], other: Sequence[int]) -> int:
    for at, (a, b) in enumerate(zip(one, other, strict=False)):
        if a != b:
            return at
    return min(len(one), len(other))

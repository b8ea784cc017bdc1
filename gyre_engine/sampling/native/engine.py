"""The native engine: one thread computes, the event loop asks and listens.

promises  an idle or paused engine uses no CPU; importing starts nothing, so a process may be forked up to the constructor;
          an error of the thread ends every request with EngineFailed, and the engine takes no more.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import TypeVar

import torch

from gyre_engine.sampling.kv import KvPages
from gyre_engine.sampling.native.batcher import Batcher, Limits
from gyre_engine.sampling.native.sampler import request_key
from gyre_engine.sampling.native.sequence import Sequence as Running
from gyre_engine.sampling.native.shape import read_shape
from gyre_engine.sampling.native.weights import Weights, read_weights
from gyre_engine.sampling.port import (
    Chunk,
    ContextTooLong,
    EngineError,
    EngineFailed,
    EngineNotServing,
    EngineStats,
    GenerateRequest,
    InFlight,
    WeightsUnreadable,
)

Answer = TypeVar("Answer")
Mail = Chunk | EngineError

FLUSH_SECONDS = 0.05  # sampled ids are delivered together, this late at most: an event a token costs more than the token


class _Stream:
    """Where the chunks of one request go: a queue of the loop that asked."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.queue: asyncio.Queue[Mail] = asyncio.Queue()


@dataclass(frozen=True, slots=True)
class _Letter:
    """What the thread is asked to run, and who is told where it never will."""

    work: Callable[[], None]
    refuse: Callable[[EngineError], None]


class NativeEngine:
    """An InferenceEngine over a Hugging Face folder (Qwen3, Qwen3-MoE, Qwen2 or Llama), in fp32 on one CPU thread.

    max_context is the model's own where not given; KV memory is touched as it is used, up to twice kv_capacity tokens.
    keep_kv: KV outlives the weights that computed it (`kv.across_versions`).
    """

    def __init__(
        self,
        folder: str | PathLike[str],
        version: str,
        *,
        kv_capacity: int = 131072,
        max_batch: int = 64,
        max_context: int | None = None,
        prefill_chunk: int = 512,
        keep_kv: bool = False,
    ) -> None:
        self._shape = read_shape(Path(folder))
        context = min(max_context or self._shape.max_context, self._shape.max_context)
        self._limits = Limits(max_batch, context, kv_capacity, prefill_chunk)
        self._batcher = Batcher(self._shape, read_weights(Path(folder), self._shape), version, self._limits, keep_kv=keep_kv)
        self._inbox: deque[_Letter] = deque()
        self._outbox: list[tuple[_Stream, Mail]] = []
        self._streams: dict[str, _Stream] = {}
        self._wake = threading.Condition()
        self._paused = self._closed = False
        self._interrupted: dict[str, tuple[int, ...]] = {}
        self._failure: EngineFailed | None = None
        self._flushed = 0.0
        self._thread = threading.Thread(target=self._run, name="native-engine", daemon=True)
        self._thread.start()

    # The event loop's side.

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[Chunk]:
        """See InferenceEngine."""
        self._check(request)
        stream, ended = _Stream(), False
        sequence = self._sequence(request, stream)
        try:
            await self._ask(lambda: self._submit(sequence, stream))
            while not ended:
                mail = await stream.queue.get()
                if isinstance(mail, EngineError):
                    raise mail
                ended = mail.finish_reason is not None
                yield mail
        finally:
            if not ended:
                self._post(lambda: self._batcher.abort(lambda s: s is sequence))

    async def abort(self, rid: str | None) -> None:
        """See InferenceEngine."""
        await self._ask(lambda: self._batcher.abort(lambda s: rid is None or s.rid == rid))

    async def pause(self, *, abort: bool) -> None:
        """See InferenceEngine."""
        await self._ask(lambda: self._pause(abort))

    async def drain(self) -> tuple[InFlight, ...]:
        """See InferenceEngine."""
        return await self._ask(self._drain)

    def interrupted(self, rid: str) -> Sequence[int] | None:
        """See KvHolder."""
        return self._interrupted.get(rid)

    async def release_memory(self) -> None:
        """See InferenceEngine. Main memory is not scarce as a GPU's is: KV goes, weights stay."""
        await self._ask(self._batcher.cache.clear)

    async def reclaim_memory(self) -> None:
        """See InferenceEngine."""

    async def resume(self) -> None:
        """See InferenceEngine."""
        await self._ask(self._resume)

    async def load_weights(self, folder: str | PathLike[str], version: str) -> None:
        """See InferenceEngine. Sampling goes on while the files are read."""
        weights = await asyncio.to_thread(self._read, Path(folder))
        await self._ask(lambda: self._batcher.swap(weights, version))

    async def score(self, input_ids: Sequence[int], *, reuse: int = 0) -> tuple[float, ...]:
        """See InferenceEngine. Decoding waits meanwhile."""
        ids = [int(token) for token in input_ids]
        if len(ids) > self._limits.max_context:
            raise ContextTooLong(len(ids), self._limits.max_context + 1)
        return tuple(await self._ask(lambda: self._batcher.score(ids, reuse)))

    async def export_kv(self, input_ids: Sequence[int]) -> KvPages:
        """See KvHolder."""
        ids = [int(token) for token in input_ids]
        return await self._ask(lambda: self._batcher.export(ids))

    async def import_kv(self, input_ids: Sequence[int], pages: KvPages) -> int:
        """See KvHolder. Raises ValueError for KV of another shape."""
        ids = [int(token) for token in input_ids]
        return await self._ask(lambda: self._batcher.take(ids, pages))

    async def stats(self) -> EngineStats:
        """See InferenceEngine."""
        return await self._ask(lambda: self._batcher.stats(paused=self._paused))

    async def close(self) -> None:
        """See InferenceEngine."""
        with self._wake:
            self._closed = True
            self._wake.notify()
        await asyncio.to_thread(self._thread.join)

    def join(self) -> EngineFailed | None:
        """Wait until the thread has ended; what broke it, None where the engine was closed."""
        self._thread.join()
        return self._failure

    def _check(self, request: GenerateRequest) -> None:
        length, limit = len(request.input_ids), self._limits.longest
        if length >= limit:
            raise ContextTooLong(length, limit)
        if not length:
            raise ValueError(f"request {request.rid} has no input ids: give at least one")
        if not 0 <= min(request.input_ids) <= max(request.input_ids) < self._shape.vocab:
            raise ValueError(
                f"request {request.rid} has ids outside 0..{self._shape.vocab - 1}: was it made with another tokenizer?"
            )

    def _sequence(self, request: GenerateRequest, stream: _Stream) -> Running:
        return Running(
            rid=request.rid,
            ids=[int(token) for token in request.input_ids],
            params=request.params,
            key=request_key(request.params.seed, request.rid),
            limit=self._limits.longest,
            streamed=request.streamed,
            routed_from=request.routed_from,
            deliver=lambda chunk: self._outbox.append((stream, chunk)),
        )

    def _read(self, folder: Path) -> Weights:
        shape = read_shape(folder)
        if shape != self._shape:
            raise WeightsUnreadable(
                f"{folder} holds {shape}, the engine runs {self._shape}: start another engine for another model"
            )
        return read_weights(folder, shape)

    async def _ask(self, question: Callable[[], Answer]) -> Answer:
        """Have the thread run something between two steps; its answer or error. What nobody waits for any more is not run."""
        future: Future[Answer] = Future()

        def answer() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                future.set_result(question())
            except Exception as error:
                future.set_exception(error)

        def refuse(error: EngineError) -> None:
            if future.set_running_or_notify_cancel():
                future.set_exception(error)

        self._post(answer, refuse)
        return await asyncio.wrap_future(future)

    def _post(self, work: Callable[[], None], refuse: Callable[[EngineError], None] = lambda _: None) -> None:
        with self._wake:
            if self._closed or self._failure:
                refuse(self._failure or EngineNotServing("the native engine was closed: ask another one"))
                return
            self._inbox.append(_Letter(work, refuse))
            self._wake.notify()

    # The thread's side.

    def _run(self) -> None:
        torch.set_num_threads(1)
        try:
            with torch.inference_mode():
                while self._turn():
                    pass
            self._end(EngineNotServing("the native engine was closed: ask another one"))
        except Exception as error:
            failure = EngineFailed(f"the native engine's thread broke: {error!r}: restart the engine")
            failure.__cause__ = error
            self._end(failure)

    def _turn(self) -> bool:
        """Wait for work, hear what is asked, compute a step, deliver; False when the engine is closed."""
        with self._wake:
            self._wake.wait_for(lambda: self._closed or self._inbox or (self._batcher.busy and not self._paused))
            if self._closed:
                return False
        for _ in range(len(self._inbox)):
            self._inbox.popleft().work()  # those behind one that breaks the thread stay, to be refused
        if self._batcher.busy and not self._paused:
            self._batcher.step()
        self._deliver()
        return True

    def _submit(self, sequence: Running, stream: _Stream) -> None:
        if self._paused:
            raise EngineNotServing("the engine is paused: ask another one, or this one after it resumed")
        if sequence.rid in self._streams:
            raise ValueError(f"request {sequence.rid} is already in flight: a rid names one request")
        self._streams[sequence.rid] = stream
        self._batcher.submit(sequence)

    def _drain(self) -> tuple[InFlight, ...]:
        self._interrupted = {sequence.rid: tuple(sequence.ids) for sequence in self._batcher.in_flight}
        self._pause(abort=True)
        return tuple(InFlight(rid, len(ids)) for rid, ids in self._interrupted.items())

    def _resume(self) -> None:
        self._paused, self._interrupted = False, {}

    def _pause(self, abort: bool) -> None:
        self._paused = True
        self._batcher.flush()
        if abort:
            self._batcher.abort(lambda _: True)

    def _deliver(self) -> None:
        now = time.monotonic()
        if now - self._flushed >= FLUSH_SECONDS:
            self._batcher.flush(all_of_it=False)
            self._flushed = now
        if self._outbox:
            self._send(self._outbox)
            self._outbox = []

    def _send(self, mails: list[tuple[_Stream, Mail]]) -> None:
        """One wake-up a loop, however many requests it listens to."""
        for stream, mail in mails:
            if isinstance(mail, EngineError) or mail.finish_reason is not None:
                self._streams = {rid: s for rid, s in self._streams.items() if s is not stream}
        for loop in {stream.loop for stream, _ in mails}:
            own = [(stream.queue, mail) for stream, mail in mails if stream.loop is loop]
            if not loop.is_closed():
                loop.call_soon_threadsafe(_put_all, own)

    def _end(self, error: EngineFailed | EngineNotServing) -> None:
        """Tell everybody who listens, and refuse what was asked and not heard."""
        with self._wake:
            self._closed = True
            self._failure = error if isinstance(error, EngineFailed) else None
            letters = list(self._inbox)
        self._send([*self._outbox, *((stream, error) for stream in self._streams.values())])
        for letter in letters:
            letter.refuse(error)


def _put_all(mails: list[tuple[asyncio.Queue[Mail], Mail]]) -> None:
    for queue, mail in mails:
        queue.put_nowait(mail)

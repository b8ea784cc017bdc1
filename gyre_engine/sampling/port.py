"""The InferenceEngine port: token ids in, sampled ids with their log-probabilities and weight versions out.

promises  every sampled id is delivered once, in order, the stop token included, with the log-probability it was sampled with and the
          version of the weights that made it; an abort keeps what was sampled; a publication of weights aborts nothing.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from os import PathLike
from typing import Protocol


class EngineError(RuntimeError):
    """An engine could not do what was asked; the message names the thing and the remedy."""


class ContextTooLong(EngineError):
    """The prompt leaves no room for one output token. Asking again is useless; the proxy answers with its protocol's context error."""

    def __init__(self, length: int, limit: int) -> None:
        super().__init__(
            f"the prompt has {length} tokens, the engine takes at most {limit - 1} (a context of {limit}): "
            "shorten or compact the history, or raise the engine's context or KV capacity"
        )
        self.length = length
        self.limit = limit


class EngineNotServing(EngineError):
    """The engine is paused, draining, closed or unreachable: ask another one, or this one later."""


class EngineFailed(EngineError):
    """The engine broke in the middle of its work; its cause is chained or named."""


class UnknownModel(EngineError):
    """The folder holds no model of a known architecture."""


class WeightsUnreadable(EngineError):
    """The folder's weights cannot be read or do not fit the model; the weights in use stay."""


class MismatchedOutput(EngineError):
    """The answer has not one id and one log-probability for each sampled token: the call is untrainable, nothing is invented."""

    def __init__(self, rid: str, ids: int | None, logprobs: int | None) -> None:
        found = f"{'no' if ids is None else ids} output ids and {'no' if logprobs is None else logprobs} log-probabilities"
        super().__init__(f"request {rid}: the engine sent {found}: the call is untrainable; check the engine's version and flags")
        self.rid = rid
        self.ids = ids
        self.logprobs = logprobs


class FinishReason(StrEnum):
    """Why a generation ended. STOP: a stop token, which is the last output id. LENGTH: max_tokens, or the context is full."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How to sample. temperature 0 is greedy, with the log-probabilities of temperature 1; top_k 0, top_p 1 and min_p 0 are off."""

    temperature: float = 1.0
    top_p: float = 1.0
    max_tokens: int = 1024
    stop_token_ids: tuple[int, ...] = ()
    seed: int | None = None
    top_k: int = 0
    min_p: float = 0.0

    def __post_init__(self) -> None:
        if self.temperature < 0 or not 0 < self.top_p <= 1 or not 0 <= self.min_p <= 1 or self.top_k < 0 or self.max_tokens < 1:
            raise ValueError(f"{self}: needs temperature >= 0, 0 < top_p <= 1, 0 <= min_p <= 1, top_k >= 0 and max_tokens >= 1")


@dataclass(frozen=True, slots=True)
class GenerateRequest:
    """One call.

    rid:        names the request for `abort`, and this one only, for good: SGLang aborts a rid again seconds after it has ended
    input_ids:  int32[n], n >= 1
    streamed:   False where nobody waits for parts: they may come together at the end, which costs less
    routed_from: the experts of the tokens from this position on are asked for, at most len(input_ids); None: they are not
    """

    rid: str
    input_ids: Sequence[int]
    params: SamplingParams = SamplingParams()
    streamed: bool = True
    routed_from: int | None = None


@dataclass(frozen=True, slots=True)
class InFlight:
    """A request that was interrupted. tokens: of its prompt and what it had sampled."""

    rid: str
    tokens: int


@dataclass(frozen=True, slots=True)
class Chunk:
    """What was sampled since the chunk before.

    output_ids:      int[m]
    logprobs:        float[m]  natural log, of the distribution at the run's temperature before top-p, top-k and min-p cut it
    weight_version:  of these ids; a chunk never mixes two versions
    finish_reason:   set on the last chunk, which may be empty
    cached_tokens:   how many input tokens came out of the prefix cache at the start
    weight_spans:    on a last chunk, where the engine gives the versions of the whole answer: they hold, whatever chunks said before
    routed:          on a last chunk, if asked for: a record (gyre_engine.experts) of the tokens from `routed_from` on, but for the
                     last one, which nobody computed; also of those whose KV was cached, as far as the engine knows. Empty: none
    """

    output_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    weight_version: str
    finish_reason: FinishReason | None = None
    cached_tokens: int = 0
    weight_spans: tuple[tuple[int, str], ...] = ()
    routed: bytes = b""


@dataclass(frozen=True, slots=True)
class Completion:
    """A whole answer. weight_spans: (first output index, weight version), ascending. routed: as Chunk's."""

    output_ids: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    weight_spans: tuple[tuple[int, str], ...] = ()
    finish_reason: FinishReason | None = None
    cached_tokens: int = 0
    routed: bytes = b""

    def plus(self, chunk: Chunk) -> Completion:
        """This answer, and what the next chunk adds."""
        spans = self.weight_spans
        if chunk.output_ids and (not spans or spans[-1][1] != chunk.weight_version):
            spans = (*spans, (len(self.output_ids), chunk.weight_version))
        return replace(
            self,
            output_ids=self.output_ids + chunk.output_ids,
            logprobs=self.logprobs + chunk.logprobs,
            weight_spans=chunk.weight_spans or spans,
            finish_reason=chunk.finish_reason,
            cached_tokens=chunk.cached_tokens,
            routed=self.routed or chunk.routed,
        )


@dataclass(frozen=True, slots=True)
class EngineStats:
    """Counts of one engine; totals since it started. kv_tokens_used counts what could be reused as well as what runs.

    prefills: the newest, where the engine tells: (tokens that stood already, tokens after it, microseconds of computing)
    kept_kv:  what of kv_tokens_used outlived the weights that computed it, at the last load of others
    """

    running: int
    waiting: int
    kv_tokens_used: int
    kv_tokens_capacity: int
    generated_tokens: int
    prefill_tokens: int
    cache_hit_tokens: int
    weight_version: str
    max_context: int
    paused: bool = False
    prefills: tuple[tuple[int, int, int], ...] = ()
    kept_kv: int = 0


class InferenceEngine(Protocol):
    """Continues token sequences. All methods may be called concurrently from one event loop."""

    def generate(self, request: GenerateRequest) -> AsyncGenerator[Chunk]:
        """Sample until a stop token, the length or an abort; the last chunk has the finish reason.

        Closing the iterator early aborts the request. Raises ContextTooLong, EngineNotServing, EngineFailed or MismatchedOutput.
        """
        ...

    async def abort(self, rid: str | None) -> None:
        """End one request, or all (None), with FinishReason.ABORT and what was sampled so far. An unknown rid is no error."""
        ...

    async def pause(self, *, abort: bool) -> None:
        """Stop sampling and take no new request (EngineNotServing) until `resume`. Those in flight are aborted, or wait."""
        ...

    async def drain(self) -> tuple[InFlight, ...]:
        """As pause(abort=True); which requests it interrupted, as far as the engine can tell."""
        ...

    async def release_memory(self) -> None:
        """Give back the memory of weights and KV, while paused and with nothing in flight; what was cached is gone."""
        ...

    async def reclaim_memory(self) -> None:
        """Take it back: `load_weights` must follow, then `resume`. Only after `release_memory`."""
        ...

    async def resume(self) -> None:
        """Serve again; what waited goes on."""
        ...

    async def load_weights(self, folder: str | PathLike[str], version: str) -> None:
        """Sample with the weights of a Hugging Face folder from the next token on (learning.md 9).

        Requests in flight go on; KV of other weights is computed again, never continued on, but by an engine that was started to keep
        it. Raises UnknownModel or WeightsUnreadable, and keeps the weights in use then.
        """
        ...

    async def score(self, input_ids: Sequence[int], *, reuse: int = 0) -> tuple[float, ...]:
        """The log-probabilities at temperature 1 of input_ids[1:], each given what stands before it (the gap probe, learning.md 8).

        reuse: the first so many ids are treated as a call's: what the prefix cache holds of them is gone on from, whatever weights it
        is of, and not scored, so that fewer scores come, the last ones; what it lacks is computed and left there.
        """
        ...

    async def stats(self) -> EngineStats:
        """Counts as they stand."""
        ...

    async def close(self) -> None:
        """Release what the client or engine holds; requests in flight end with EngineNotServing."""
        ...


async def complete(engine: InferenceEngine, request: GenerateRequest) -> Completion:
    """The whole answer to a request."""
    answer = Completion()
    async for chunk in engine.generate(request):
        answer = answer.plus(chunk)
    return answer

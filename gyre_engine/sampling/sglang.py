"""An engine in another process, by SGLang's HTTP interface: SGLang itself, or `producers.cells.engine_server`.

promises  one id with one log-probability for each sampled token, or MismatchedOutput: nothing is re-encoded, padded or guessed;
          new weights lose no token: requests are retracted, their KV is dropped unless the engine keeps KV across versions, and they
          go on; where KV moves between SGLangs (`hicache`) they are handed back instead, to go on by a new request.

SGLang must run with `--skip-tokenizer-init` and without SGLANG_RETURN_ORIGINAL_LOGPROB (its log-probabilities are then those at the
request's temperature), better with `--incremental-streaming-output`. A request that reaches SGLang while *another* client has paused
it waits there instead of failing with EngineNotServing; with `hicache.server` around it only where that pause aborts nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from os import PathLike, fspath
from typing import Any, NoReturn

import numpy as np
import orjson

from gyre_engine.experts import Experts
from gyre_engine.sampling.http_client import HttpClient, HttpLost
from gyre_engine.sampling.kv import KvTicket
from gyre_engine.sampling.port import (
    Chunk,
    ContextTooLong,
    EngineFailed,
    EngineNotServing,
    EngineStats,
    GenerateRequest,
    InFlight,
    MismatchedOutput,
    SamplingParams,
    WeightsUnreadable,
)
from gyre_engine.sampling.rids import END_OF_RID
from gyre_engine.sampling.sglang_stream import Reading, Triples, room_for_output, too_long

Json = dict[str, Any]

CONTROL_SECONDS = 60.0
ASK_AGAIN_SECONDS = 0.02
LOAD_SECONDS = 600.0
KV_SECONDS = 90.0
"""Above what engines let a move take."""
MESSAGE_CHARACTERS = 500  # SGLang may repeat a whole prompt in an error


@dataclass(slots=True)
class _Seen:
    """What this client saw, for totals that SGLang does not report."""

    generated: int = 0
    prefilled: int = 0
    cached: int = 0


class _TooMuchAsked(Exception):
    """SGLang refuses max_tokens that reach over the context, where the port's answer ends with the context: ask for what has room."""

    def __init__(self, room: int) -> None:
        super().__init__(f"room for {room} tokens")
        self.room = room


class SGLangEngine:
    """An InferenceEngine over HTTP. silence: seconds without a byte from a request in flight before it counts as lost.

    Engines queue without a sound, so `silence` is long; a server that died closes the connection and is seen at once.
    experts: the model's, without which SGLang's own record of routed experts is not read (it was started to give it).
    """

    def __init__(self, url: str, *, silence: float = 3600.0, experts: Experts | None = None) -> None:
        self._url = url
        self._experts = experts
        self._http = HttpClient(url)
        self._silence = silence
        self._paused = False
        self._seen = _Seen()

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[Chunk]:
        """See InferenceEngine. Closing the iterator closes the connection, which aborts the request."""
        if self._paused:
            raise EngineNotServing(f"the engine at {self._url} is paused: ask another one, or this one after it resumed")
        try:
            async with aclosing(self._attempt(request)) as chunks:
                async for chunk in chunks:
                    yield chunk
        except _TooMuchAsked as error:
            shorter = replace(request, params=replace(request.params, max_tokens=error.room))
            async with aclosing(self._attempt(shorter)) as chunks:
                async for chunk in chunks:
                    yield chunk

    async def _attempt(self, request: GenerateRequest) -> AsyncGenerator[Chunk]:
        reading = Reading(request, self._experts)
        try:
            async with self._http.post("/generate", _body(request), self._silence) as answer:
                if answer.status != 200:
                    self._refuse(answer.status, await answer.whole(), request)
                async for event in answer.events():
                    if "error" in event:
                        self._refuse(_code(event), orjson.dumps(event), request)
                    for chunk in self._counted(reading.chunks(event), event):
                        yield chunk
        except HttpLost as error:
            raise self._lost(error) from error
        if not reading.ended:
            raise EngineNotServing(f"the engine at {self._url} closed request {request.rid} unfinished: ask another one")

    async def abort(self, rid: str | None) -> None:
        """See InferenceEngine."""
        await self._post("/abort_request", {"rid": "" if rid is None else _wire(rid), "abort_all": rid is None})

    async def pause(self, *, abort: bool) -> None:
        """See InferenceEngine."""
        self._paused = True
        await self._post("/pause_generation", {"mode": "abort" if abort else "retract"})

    async def drain(self) -> tuple[InFlight, ...]:
        """See InferenceEngine. SGLang as it comes does not say what it has interrupted; with `hicache.server` around it, it does."""
        self._paused = True
        status, answer = await self._exchange("/drain", {}, CONTROL_SECONDS)
        if status == 404:
            await self._post("/pause_generation", {"mode": "abort"})
            return ()
        if status != 200:
            raise EngineFailed(f"the engine at {self._url} answered /drain with {status}: {_message(answer)}")
        return tuple(InFlight(str(one["rid"]), int(one["tokens"])) for one in answer["requests"])

    async def release_memory(self) -> None:
        """See InferenceEngine. SGLang dies of it while a request runs, so those that a pause has aborted are waited for.

        Memory of a GPU is given back only by a server that was started with `--enable-memory-saver`.
        """
        until = asyncio.get_running_loop().time() + CONTROL_SECONDS
        while (running := (await self.stats()).running) and asyncio.get_running_loop().time() < until:
            await asyncio.sleep(ASK_AGAIN_SECONDS)
        if running:
            raise EngineFailed(f"the engine at {self._url} still runs {running} requests {CONTROL_SECONDS:.0f} s after a pause")
        await self._post("/release_memory_occupation", {})

    async def reclaim_memory(self) -> None:
        """See InferenceEngine. SGLang dies of it where nothing was released."""
        await self._post("/resume_memory_occupation", {})

    async def resume(self) -> None:
        """See InferenceEngine."""
        await self._post("/continue_generation", {})
        self._paused = False

    async def load_weights(self, folder: str | PathLike[str], version: str) -> None:
        """See InferenceEngine. SGLang drops the KV of requests only while they are retracted, so it is paused meanwhile."""
        body = {"model_path": fspath(folder), "weight_version": version, "flush_cache": True, "abort_all_requests": False}
        if not self._paused:
            await self._post("/pause_generation", {"mode": "retract"})
        try:
            status, answer = await self._exchange("/update_weights_from_disk", body, LOAD_SECONDS)
        finally:
            if not self._paused:
                await self._post("/continue_generation", {})
        if status != 200:
            raise WeightsUnreadable(f"the engine at {self._url} keeps its weights: {fspath(folder)}: {_message(answer)}")

    async def score(self, input_ids: Sequence[int], *, reuse: int = 0) -> tuple[float, ...]:
        """See InferenceEngine. SGLang never scales the scores of a prompt, whatever the temperature says."""
        ids = [int(token) for token in input_ids]
        body = {
            "input_ids": ids,
            "return_logprob": True,
            "logprob_start_len": reuse,
            "sampling_params": {"max_new_tokens": 0},
        }
        status, answer = await self._exchange("/generate", body, LOAD_SECONDS)
        if status != 200:
            self._refuse(status, orjson.dumps(answer), GenerateRequest("score", ids))
        scores: Triples = answer["meta_info"].get("input_token_logprobs") or []
        if len(scores) != len(ids) and not (reuse and len(ids) - reuse <= len(scores) < len(ids)):
            raise MismatchedOutput("score", len(ids), len(scores))
        return tuple(float(triple[0]) for triple in scores[1:])

    async def export_kv(self, rid: str, *, lease: float) -> KvTicket | None:
        """Have the engine keep the KV of a request that `drain` interrupted readable for `lease` seconds; None where there is none, as
        at an SGLang without the backend that moves it (docs/kv.md)."""
        status, answer = await self._exchange("/kv_export", {"rid": rid, "lease": lease}, KV_SECONDS)
        if status == 404 or not self._done("/kv_export", status, answer)["ticket"]:
            return None
        return KvTicket.from_fields(answer["ticket"])

    async def import_kv(self, ticket: KvTicket) -> int:
        """Have the engine read and cache what a ticket names; how many tokens it took: none under weights of another version."""
        status, answer = await self._exchange("/kv_import", {"ticket": ticket.to_fields()}, KV_SECONDS)
        if status == 404:
            raise EngineFailed(f"the engine at {self._url} takes no KV: set cells.engine_kv, or let it be computed again")
        return int(self._done("/kv_import", status, answer)["tokens"])

    async def release_kv(self, ticket: KvTicket) -> None:
        """Free what an export keeps."""
        self._done("/kv_release", *await self._exchange("/kv_release", {"ticket": ticket.to_fields()}, KV_SECONDS))

    async def stats(self) -> EngineStats:
        """See InferenceEngine. Of SGLang itself the totals are what this client saw."""
        info = await self._get("/server_info")
        if "engine" in info:
            told = info["engine"]
            return EngineStats(**{**told, "prefills": tuple(tuple(one) for one in told.get("prefills", ()))})
        return self._sglang_stats(info, await self._get("/v1/loads"), await self._get("/model_info"))

    async def close(self) -> None:
        """Close the connections; requests of this client end at the engine, the engine stays."""
        await self._http.aclose()

    def _counted(self, chunks: list[Chunk], event: Json) -> list[Chunk]:
        self._seen.generated += sum(len(chunk.output_ids) for chunk in chunks)
        if chunks and chunks[-1].finish_reason is not None:
            cached = chunks[-1].cached_tokens
            self._seen.cached += cached
            self._seen.prefilled += int(event["meta_info"].get("prompt_tokens") or 0) - cached
        return chunks

    def _sglang_stats(self, info: Json, loads: Json, model: Json) -> EngineStats:
        load = loads["loads"][0]
        return EngineStats(
            running=load["num_running_reqs"],
            waiting=load["num_waiting_reqs"],
            kv_tokens_used=load["num_used_tokens"],
            kv_tokens_capacity=load["max_total_num_tokens"],
            generated_tokens=self._seen.generated,
            prefill_tokens=self._seen.prefilled,
            cache_hit_tokens=self._seen.cached,
            weight_version=model["weight_version"],
            max_context=info.get("context_length") or load["max_total_num_tokens"],
            paused=self._paused,
        )

    async def _get(self, path: str) -> Json:
        try:
            async with self._http.get(path, CONTROL_SECONDS) as answer:
                status, content = answer.status, await answer.whole()
        except HttpLost as error:
            raise self._lost(error) from error
        if status != 200:
            raise self._lost(HttpLost(f"{path}: status {status}"))
        found: Json = orjson.loads(content)
        return found

    async def _post(self, path: str, body: Json) -> Json:
        return self._done(path, *await self._exchange(path, body, CONTROL_SECONDS))

    def _done(self, path: str, status: int, answer: Json) -> Json:
        if status == 503:
            raise EngineNotServing(_message(answer))
        if status != 200:
            raise EngineFailed(f"the engine at {self._url} answered {path} with {status}: {_message(answer)}")
        return answer

    async def _exchange(self, path: str, body: Json, seconds: float) -> tuple[int, Json]:
        try:
            async with self._http.post(path, orjson.dumps(body), seconds) as answer:
                return answer.status, _parsed(await answer.whole())
        except HttpLost as error:
            raise self._lost(error) from error

    def _lost(self, error: HttpLost) -> EngineNotServing:
        return EngineNotServing(f"the engine at {self._url} cannot be reached ({error}): ask another one, and see to its process")

    def _refuse(self, status: int, content: bytes, request: GenerateRequest) -> NoReturn:
        """What an error answer means."""
        answer = _parsed(content)
        detail = answer.get("error")
        text = _message(answer)
        if isinstance(detail, dict) and "limit" in detail:
            raise ContextTooLong(detail["length"], detail["limit"])
        if refused := too_long(text):
            raise refused
        if room := room_for_output(text):
            raise _TooMuchAsked(room)
        if status == 503:
            raise EngineNotServing(text)
        if status == 400:
            raise ValueError(f"the engine at {self._url} refused request {request.rid}: {text}")
        raise EngineFailed(f"the engine at {self._url} answered request {request.rid} with {status}: {text}")


def _wire(rid: str) -> str:
    """As SGLang gets it."""
    return f"{rid}{END_OF_RID}"


def _body(request: GenerateRequest) -> bytes:
    given = request.input_ids
    ids = given if isinstance(given, (list, np.ndarray)) else [int(token) for token in given]
    return orjson.dumps(
        {
            "rid": _wire(request.rid),
            "input_ids": ids,
            "sampling_params": _params(request.params),
            "return_logprob": True,
            "stream": request.streamed,
            **_routing(request),
        },
        option=orjson.OPT_SERIALIZE_NUMPY,
    )


def _routing(request: GenerateRequest) -> Json:
    if request.routed_from is None:
        return {}
    return {"return_routed_experts": True, "routed_experts_start_len": request.routed_from}


def _params(params: SamplingParams) -> Json:
    return {
        "temperature": params.temperature,
        "top_p": params.top_p,
        "top_k": params.top_k or -1,
        "min_p": params.min_p,
        "max_new_tokens": params.max_tokens,
        "stop_token_ids": list(params.stop_token_ids),
        "sampling_seed": params.seed,
    }


def _parsed(content: bytes) -> Json:
    try:
        answer = orjson.loads(content or b"{}")
    except orjson.JSONDecodeError:
        return {"error": {"message": content[:500].decode(errors="replace")}}
    return answer if isinstance(answer, dict) else {"message": str(answer)}


def _code(event: Json) -> int:
    """The status that an error would have had, had the stream not been open; SGLang names it too."""
    return int(event["error"].get("code") or 400)


def _message(answer: Json) -> str:
    detail = answer.get("error", answer)
    return str(detail.get("message", detail) if isinstance(detail, dict) else detail)[:MESSAGE_CHARACTERS]

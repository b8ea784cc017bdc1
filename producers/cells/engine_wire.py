"""The part of SGLang's HTTP interface that an engine of ours speaks: bodies parsed into the port's types, answers rendered.

Streamed chunks are incremental, as SGLang's are with `--incremental-streaming-output`; `completion_tokens` counts from the start.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping
from typing import Any
from uuid import uuid4

from gyre_engine.sampling.port import (
    Chunk,
    Completion,
    ContextTooLong,
    EngineNotServing,
    EngineStats,
    FinishReason,
    GenerateRequest,
    SamplingParams,
    UnknownModel,
    WeightsUnreadable,
)
from gyre_engine.sampling.rids import END_OF_RID
from gyre_engine.sampling.sglang_stream import ROUTED_ROWS

Json = dict[str, Any]

DEFAULT_MAX_TOKENS = 128  # SGLang's


def parse_generate(body: Mapping[str, Any]) -> GenerateRequest:
    """A `/generate` body. Raises ValueError that names what is missing."""
    ids = body.get("input_ids")
    if not isinstance(ids, list) or not ids or not all(isinstance(token, int) for token in ids):
        raise ValueError("`input_ids` must be a non-empty list of token ids: this engine takes no text and no batches")
    params = parse_params(body.get("sampling_params") or {})
    routed_from = int(body.get("routed_experts_start_len") or 0) if body.get("return_routed_experts") else None
    return GenerateRequest(parse_rid(body) or uuid4().hex, ids, params, bool(body.get("stream")), routed_from)


def parse_rid(body: Mapping[str, Any]) -> str:
    """The rid without the mark that our client puts at its end."""
    return str(body.get("rid") or "").removesuffix(END_OF_RID)


def parse_params(given: Mapping[str, Any]) -> SamplingParams:
    """SGLang's sampling parameters; top_k -1 is off there, 0 here."""
    return SamplingParams(
        temperature=float(given.get("temperature", 1.0)),
        top_p=float(given.get("top_p", 1.0)),
        max_tokens=int(given.get("max_new_tokens", DEFAULT_MAX_TOKENS)),
        stop_token_ids=tuple(given.get("stop_token_ids") or ()),
        seed=given.get("sampling_seed"),
        top_k=max(0, int(given.get("top_k", 0))),
        min_p=float(given.get("min_p", 0.0)),
    )


def wants_scores(body: Mapping[str, Any]) -> bool:
    """Whether the prompt is to be scored and nothing sampled."""
    start = body.get("logprob_start_len")
    return isinstance(start, int) and start >= 0 and (body.get("sampling_params") or {}).get("max_new_tokens") == 0


def render_answer(request: GenerateRequest, part: Completion | Chunk, so_far: Completion) -> Json:
    """An answer, or a chunk of one whose ids so far are `so_far` (the part included). Spans count within the part."""
    versions = part.weight_spans if isinstance(part, Completion) else ((0, part.weight_version),)
    return {
        "output_ids": part.output_ids,
        "meta_info": {
            "id": request.rid,
            "prompt_tokens": len(request.input_ids),
            "completion_tokens": len(so_far.output_ids),
            "cached_tokens": part.cached_tokens,
            "output_token_logprobs": [
                (logprob, token, None) for logprob, token in zip(part.logprobs, part.output_ids, strict=True)
            ],
            "finish_reason": render_finish(request, part),
            "weight_version": versions[-1][1] if versions else None,
            "weight_versions": render_spans(so_far),
            **({ROUTED_ROWS: b64encode(part.routed).decode()} if part.routed else {}),
        },
    }


def render_finish(request: GenerateRequest, part: Completion | Chunk) -> Json | None:
    """SGLang's form: a type, and what matched or how long it was."""
    match part.finish_reason:
        case None:
            return None
        case FinishReason.STOP:
            return {"type": "stop", "matched": part.output_ids[-1] if part.output_ids else None}
        case FinishReason.LENGTH:
            return {"type": "length", "length": request.params.max_tokens}
        case FinishReason.ABORT:
            return {"type": "abort", "message": "aborted"}


def render_spans(answer: Completion) -> list[Json]:
    """Spans over the whole output so far; none where nothing was sampled, as when a call is aborted before its first token."""
    if not answer.weight_spans:
        return []
    ends = [start for start, _ in answer.weight_spans[1:]] + [len(answer.output_ids)]
    return [
        {"version": version, "start": start, "end": end} for (start, version), end in zip(answer.weight_spans, ends, strict=True)
    ]


def render_scores(ids: list[int], logprobs: tuple[float, ...]) -> Json:
    """The first token has no log-probability, nor have those before the ones that were scored."""
    first = len(ids) - 1 - len(logprobs)
    scored = zip(logprobs, ids[first + 1 :], strict=True)
    scores = [(None, ids[first], None), *((logprob, token, None) for logprob, token in scored)]
    return {"output_ids": [], "meta_info": {"prompt_tokens": len(ids), "input_token_logprobs": scores}}


def render_stats(stats: EngineStats) -> Json:
    """`/server_info`: SGLang's names where it has them, and all counts under `engine`."""
    return {
        "weight_version": stats.weight_version,
        "max_total_num_tokens": stats.kv_tokens_capacity,
        "context_length": stats.max_context,
        "engine": {name: getattr(stats, name) for name in stats.__slots__},
    }


def render_error(error: Exception) -> tuple[int, Json]:
    """Status and body. 400: asking again is useless; 503: another engine, or later; 500: this one broke."""
    detail: Json = {"message": str(error), "type": type(error).__name__}
    status = _status(error)
    if isinstance(error, ContextTooLong):
        detail |= {"length": error.length, "limit": error.limit}
    return status, {"error": {**detail, "code": status}}


def _status(error: Exception) -> int:
    match error:
        case EngineNotServing():
            return 503
        case ContextTooLong() | UnknownModel() | WeightsUnreadable() | ValueError() | TypeError():
            return 400
        case _:
            return 500

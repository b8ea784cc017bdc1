"""SGLang's answers as chunks (case C15): nothing re-encoded, padded or guessed."""

from __future__ import annotations

from base64 import b64encode
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gyre_engine.experts import BadRouting, Experts
from gyre_engine.sampling import Chunk, Completion, FinishReason, MismatchedOutput
from gyre_engine.sampling.port import EngineFailed, GenerateRequest
from gyre_engine.sampling.sglang_stream import Reading, routed_of_all_layers

IDS = [11, 12, 13, 14, 15, 16]
REQUEST = GenerateRequest("r", [1, 2, 3])


def triples(ids: list[int]) -> list[list[Any]]:
    return [[-token / 10, token, None] for token in ids]


def event(ids: list[int] | None, logprobs: list[int] | None, finish: dict[str, Any] | None = None, **meta: Any) -> dict[str, Any]:
    body = {"finish_reason": finish, "weight_version": "v1", "cached_tokens": 0, **meta}
    if logprobs is not None:
        body["output_token_logprobs"] = triples(logprobs)
    return {"meta_info": body} if ids is None else {"output_ids": ids, "meta_info": body}


def read(*events: dict[str, Any]) -> Completion:
    reading, answer = Reading(REQUEST), Completion()
    for one in events:
        for chunk in reading.chunks(one):
            answer = answer.plus(chunk)
    return answer


STOP = {"type": "stop", "matched": 16}


def test_a_logprob_that_is_no_number_stays_none() -> None:
    """SGLang's JSON has null for nan; the proxy records such a call as untrainable."""
    told = event(IDS[:1], IDS[:1], STOP, completion_tokens=1)
    told["meta_info"]["output_token_logprobs"] = [[None, IDS[0], None]]
    [logprob] = read(told).logprobs
    assert logprob != logprob


def test_text_and_logprobs_without_ids_are_refused() -> None:
    """C15 a."""
    with pytest.raises(MismatchedOutput, match="no output ids and 5 log-probabilities") as refused:
        read(event(None, IDS[:5], STOP) | {"text": "hello"})
    assert (refused.value.ids, refused.value.logprobs) == (None, 5)


def test_five_ids_with_four_logprobs_are_refused() -> None:
    """C15 b."""
    with pytest.raises(MismatchedOutput, match="5 output ids and 4 log-probabilities"):
        read(event(IDS[:5], IDS[:4], STOP, completion_tokens=5))


@pytest.mark.parametrize("counted", [True, False])
def test_incremental_ids_with_cumulative_logprobs_give_one_each(counted: bool) -> None:
    """C15 c: three chunks of two ids with 2, 4 and 6 log-probabilities."""
    events = [
        event(IDS[at : at + 2], IDS[: at + 2], STOP if at == 4 else None, **({"completion_tokens": at + 2} if counted else {}))
        for at in (0, 2, 4)
    ]
    answer = read(*events)
    assert answer.output_ids == tuple(IDS)
    assert answer.logprobs == tuple(-token / 10 for token in IDS)
    assert answer.finish_reason is FinishReason.STOP


def test_logprobs_of_other_ids_are_refused() -> None:
    with pytest.raises(MismatchedOutput):
        read(event([1, 2, 3], [1, 2, 4], STOP, completion_tokens=3))


def test_an_abort_before_the_first_token_is_an_empty_answer() -> None:
    answer = read(event(None, None, {"type": "abort", "message": "aborted"}))
    assert answer == Completion(finish_reason=FinishReason.ABORT)


def test_an_abort_for_a_fault_of_the_engine_is_no_answer() -> None:
    with pytest.raises(EngineFailed, match="out of memory"):
        read(event([], [], {"type": "abort", "message": "out of memory", "status_code": 500}))


def test_spans_are_cut_where_the_version_changes() -> None:
    """C30: 57 tokens of v7, the rest of v8, in one whole answer."""
    ids = list(range(128))
    spans = [{"version": "v7", "start": 0, "end": 57}, {"version": "v8", "start": 57, "end": 128}]
    chunks = Reading(REQUEST).chunks(event(ids, ids, STOP, completion_tokens=128, weight_versions=spans))
    assert [(len(chunk.output_ids), chunk.weight_version, chunk.finish_reason) for chunk in chunks] == [
        (57, "v7", None),
        (71, "v8", FinishReason.STOP),
    ]


@given(
    sizes=st.lists(st.integers(0, 5), min_size=1, max_size=8),
    forms=st.tuples(st.booleans(), st.booleans()),
    change=st.integers(0, 40),
)
def test_every_form_of_a_stream_gives_every_token_once(sizes: list[int], forms: tuple[bool, bool], change: int) -> None:
    """Cumulative or incremental, ids and log-probabilities apart, a version change anywhere."""
    ids, at, events = [20 + i for i in range(sum(sizes))], 0, []
    for number, size in enumerate(sizes):
        start, at = at, at + size
        spans = [{"version": "a", "start": 0, "end": min(change, at)}, {"version": "b", "start": min(change, at), "end": at}]
        events.append(
            event(
                ids[0 if forms[0] else start : at],
                ids[0 if forms[1] else start : at],
                STOP if number == len(sizes) - 1 else None,
                completion_tokens=at,
                weight_versions=[span for span in spans if span["start"] < span["end"]] or spans[:1],
            )
        )
    answer = read(*events)
    assert answer.output_ids == tuple(ids)
    assert answer.logprobs == tuple(-token / 10 for token in ids)
    wanted = [(0, "a")] * (change > 0 and bool(ids)) + [(change, "b")] * (change < len(ids))
    assert answer.weight_spans == tuple(wanted)


def test_a_chunk_without_news_says_nothing() -> None:
    assert Reading(REQUEST).chunks(event([], [], completion_tokens=0)) == []
    assert Reading(REQUEST).chunks(event([5], [5], completion_tokens=1)) == [Chunk((5,), (-0.5,), "v1")]


EXPERTS = Experts(count=300, chosen=2, ffn=8, normed=True, layers=(0, 2))


def test_sglangs_record_of_all_layers_becomes_rows_of_those_with_experts() -> None:
    """int32[tokens, all layers, chosen] in base64, of the tokens from the asked position on but for the last, as its
    `_maybe_collect_routed_experts` gathers it; 300 experts take two bytes each."""
    told = np.array([[[1, 2], [0, 0], [299, 4]], [[5, 6], [0, 0], [7, 8]], [[0, 0], [0, 0], [0, 0]]], dtype="<i4")
    request = GenerateRequest("r", [1, 2, 3], routed_from=1)
    end = event([9, 16], [9, 16], STOP, completion_tokens=2, routed_experts=b64encode(told.tobytes()).decode())
    [chunk] = Reading(request, EXPERTS).chunks(end)
    assert chunk.routed == bytes([1, 0, 2, 0, 43, 1, 4, 0, 5, 0, 6, 0, 7, 0, 8, 0]) + b"\xff" * 8


def test_a_record_that_nobody_asked_for_or_could_read_is_left() -> None:
    end = event([16], [16], STOP, completion_tokens=1, routed_experts=b64encode(bytes(24)).decode())
    assert Reading(REQUEST, EXPERTS).chunks(end)[0].routed == b""
    assert Reading(GenerateRequest("r", [1, 2, 3], routed_from=0)).chunks(end)[0].routed == b""


def test_a_record_of_another_size_is_refused() -> None:
    with pytest.raises(BadRouting, match="12 experts for 3 tokens of 2 in each layer"):
        routed_of_all_layers(np.arange(12, dtype=np.int32), EXPERTS, 3)

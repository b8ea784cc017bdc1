"""`kv.across_versions = "keep"`: KV outlives its weights, and scores are those of the new weights on it, as transformers has them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import torch

from gyre_engine.sampling import Completion, GenerateRequest, SamplingParams, complete
from gyre_engine.sampling.native import NativeEngine

IDS = [(5 * i * i + i) % 96 for i in range(80)]
KEPT = 40


@pytest.fixture(scope="module")
def models(folder: Path, other_folder: Path) -> tuple[Any, Any]:
    from transformers import Qwen3ForCausalLM

    old, new = (Qwen3ForCausalLM.from_pretrained(where, dtype=torch.float32) for where in (folder, other_folder))
    return old, new


def on_kept(models: tuple[Any, Any], ids: list[int], kept: int) -> list[float]:
    """Log-probabilities of ids[kept + 1:]: the new model reads ids[kept:] on the KV that the old one made of ids[:kept]."""
    old, new = models
    with torch.no_grad():
        past = old(torch.tensor([ids[:kept]]), use_cache=True).past_key_values if kept else None
        logits = new(torch.tensor([ids[kept:]]), past_key_values=past, use_cache=True).logits[0, :-1]
    return [float(row[token]) for row, token in zip(logits.log_softmax(-1), ids[kept + 1 :], strict=True)]


@pytest.fixture(params=[True, False], ids=["keep", "recompute"])
async def engine(request: pytest.FixtureRequest, folder: Path) -> AsyncIterator[tuple[NativeEngine, bool]]:
    made = NativeEngine(folder, "7", keep_kv=request.param)
    yield made, request.param
    await made.close()


async def test_a_prefix_is_gone_on_from_where_kv_is_kept_and_computed_again_where_not(
    engine: tuple[NativeEngine, bool], models: tuple[Any, Any], other_folder: Path
) -> None:
    native, keeps = engine
    assert len(await native.score(IDS[: KEPT + 1], reuse=KEPT)) == KEPT
    await native.load_weights(other_folder, "8")
    assert (await native.stats()).kept_kv == (KEPT if keeps else 0)
    found = await native.score(IDS, reuse=KEPT)
    expected, fresh = on_kept(models, IDS, KEPT), on_kept(models, IDS, 0)
    assert max(abs(a - b) for a, b in zip(expected, fresh[KEPT:], strict=True)) > 0.1
    assert found == pytest.approx(expected if keeps else fresh, abs=1e-4)
    assert await native.score(IDS) == pytest.approx(fresh, abs=1e-4)


async def test_a_call_in_flight_goes_on_from_its_kv_and_computes_nothing_again(
    engine: tuple[NativeEngine, bool], models: tuple[Any, Any], other_folder: Path
) -> None:
    """At the load all tokens but the last have KV; of the tokens after it the log-probabilities are those on that KV."""
    native, keeps = engine
    chunks = native.generate(GenerateRequest("on", IDS[:30], SamplingParams(max_tokens=200, seed=1)))
    answer = Completion().plus(await anext(chunks))
    await native.load_weights(other_folder, "8")
    async for chunk in chunks:
        answer = answer.plus(chunk)
    (_, (switched, version)) = answer.weight_spans
    assert version == "8" and 0 < switched < 200
    kept = 30 + switched - 1
    expected = on_kept(models, IDS[:30] + list(answer.output_ids), kept if keeps else 0)
    assert answer.logprobs[switched:] == pytest.approx(expected[switched - 200 :], abs=1e-4)
    stats = await native.stats()
    assert stats.kept_kv == (29 + kept if keeps else 0)  # the prompt stands in the cache too, for others
    assert stats.prefill_tokens == (29 if keeps else 29 + kept)


async def test_the_next_turn_finds_what_was_computed_under_older_weights(
    engine: tuple[NativeEngine, bool], other_folder: Path
) -> None:
    native, keeps = engine
    await complete(native, GenerateRequest("one", IDS[:60], SamplingParams(max_tokens=1)))
    await native.load_weights(other_folder, "8")
    again = await complete(native, GenerateRequest("two", IDS, SamplingParams(max_tokens=1)))
    assert again.cached_tokens == (60 if keeps else 0)

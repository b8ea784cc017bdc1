"""`kv.across_versions = "keep"`: KV outlives its weights, and scores are those of the new weights on it, as transformers has them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import reduce
from pathlib import Path
from typing import Any

import pytest
import torch

from gyre_engine.sampling import Chunk, Completion, GenerateRequest, SamplingParams, complete
from gyre_engine.sampling.native import NativeEngine
from gyre_engine.sampling.native.batcher import Batcher, Limits
from gyre_engine.sampling.native.sampler import request_key
from gyre_engine.sampling.native.sequence import Sequence
from gyre_engine.sampling.native.shape import ModelShape
from gyre_engine.sampling.native.weights import read_weights

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


@pytest.mark.parametrize("keeps", [True, False], ids=["keep", "recompute"])
def test_a_call_in_flight_goes_on_from_its_kv_and_computes_nothing_again(
    keeps: bool, models: tuple[Any, Any], folder: Path, other_folder: Path, shape: ModelShape
) -> None:
    """57 tokens after a prompt of 30: at the load all but the last have KV, and what follows is sampled on that KV."""
    batcher = Batcher(shape, read_weights(folder, shape), "7", Limits(max_context=512, kv_capacity=4096), keep_kv=keeps)
    chunks: list[Chunk] = []
    params = SamplingParams(max_tokens=128, seed=5)
    sequence = Sequence("on", IDS[:30], params, request_key(5, "on"), batcher.limits.longest, chunks.append)
    with torch.inference_mode():
        batcher.submit(sequence)
        while sequence.sampled < 57:
            batcher.step()
        batcher.swap(read_weights(other_folder, shape), "8")
        while batcher.busy:
            batcher.step()
    answer = reduce(Completion.plus, chunks, Completion())
    assert answer.weight_spans == ((0, "7"), (57, "8"))
    expected = on_kept(models, IDS[:30] + list(answer.output_ids), 86 if keeps else 0)
    assert answer.logprobs[57:] == pytest.approx(expected[57 - 128 :], abs=1e-4)
    stats = batcher.stats(paused=False)
    assert stats.kept_kv == (29 + 86 if keeps else 0)  # the prompt stands in the cache too, for others
    assert stats.prefill_tokens == (29 if keeps else 29 + 86)


async def test_the_next_turn_finds_what_was_computed_under_older_weights(
    engine: tuple[NativeEngine, bool], other_folder: Path
) -> None:
    native, keeps = engine
    await complete(native, GenerateRequest("one", IDS[:60], SamplingParams(max_tokens=1)))
    await native.load_weights(other_folder, "8")
    again = await complete(native, GenerateRequest("two", IDS, SamplingParams(max_tokens=1)))
    assert again.cached_tokens == (60 if keeps else 0)

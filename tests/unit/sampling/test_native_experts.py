"""A mixture of experts in the native engine: what it computes and which experts it says it used, by transformers as the reference."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import orjson
import pytest
import torch
from transformers import AutoModelForCausalLM

from gyre_engine.experts import Experts
from gyre_engine.sampling import Chunk, Completion, FinishReason, SamplingParams
from gyre_engine.sampling.kv import KvPages
from gyre_engine.sampling.native.batcher import Batcher, Limits
from gyre_engine.sampling.native.fresh import write_fresh_model
from gyre_engine.sampling.native.sampler import request_key
from gyre_engine.sampling.native.sequence import Sequence
from gyre_engine.sampling.native.shape import ModelShape, read_shape
from gyre_engine.sampling.native.weights import read_weights
from gyre_engine.sampling.port import GenerateRequest
from gyre_engine.sampling.sglang import _body
from gyre_engine.sampling.sglang_stream import Reading
from producers.cells.engine_wire import parse_generate, render_answer
from tests.unit.sampling.conftest import TINY

EXPERTS = Experts(count=6, chosen=2, ffn=20, normed=True, layers=(0, 2))
MIXTURE = replace(TINY, architecture="qwen3_moe", layers=3, experts=EXPERTS, tied=False)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_fresh_model(tmp_path_factory.mktemp("mixture"), MIXTURE, seed=3, spread=0.25)


@pytest.fixture(autouse=True)
def inference() -> Iterator[None]:
    with torch.inference_mode():
        yield


def prompt(length: int, start: int = 1) -> list[int]:
    return [(start + 7 * i * i + 3 * i) % 96 for i in range(length)]


def batcher_of(folder: Path, shape: ModelShape = MIXTURE, **limits: int) -> Batcher:
    return Batcher(shape, read_weights(folder, shape), "1", Limits(**{"max_context": 512, "kv_capacity": 4096} | limits))


def submit(batcher: Batcher, rid: str, ids: list[int], routed_from: int | None = 0, most: int = 20) -> list[Chunk]:
    chunks: list[Chunk] = []
    params = SamplingParams(max_tokens=most, seed=5)
    key = request_key(5, rid)
    batcher.submit(Sequence(rid, list(ids), params, key, batcher.limits.longest, chunks.append, routed_from=routed_from))
    return chunks


def answer(chunks: list[Chunk]) -> Completion:
    found = Completion()
    for chunk in chunks:
        found = found.plus(chunk)
    return found


def ask(batcher: Batcher, rid: str, ids: list[int], routed_from: int | None = 0) -> Completion:
    chunks = submit(batcher, rid, ids, routed_from)
    while batcher.busy:
        batcher.step()
    return answer(chunks)


def routed_by_transformers(folder: Path, ids: list[int]) -> np.ndarray:
    """int[tokens, layers, chosen], each token's experts ascending."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    seen: list[torch.Tensor] = []
    for layer in EXPERTS.layers:
        model.model.layers[layer].mlp.gate.register_forward_hook(lambda _, __, out: seen.append(out[2]))
    model(torch.tensor([ids]))
    return np.sort(np.stack([one.numpy() for one in seen], axis=1), axis=2)


def read(routed: bytes) -> np.ndarray:
    rows = np.frombuffer(routed, dtype=np.uint8).reshape(-1, EXPERTS.width)
    return np.sort(EXPERTS.routed(rows), axis=2)


@pytest.mark.parametrize("normed", [True, False])
def test_it_scores_as_transformers_does(tmp_path: Path, normed: bool) -> None:
    shape = replace(MIXTURE, experts=replace(EXPERTS, normed=normed))
    folder = write_fresh_model(tmp_path, shape, seed=4, spread=0.2)
    assert read_shape(folder) == shape
    ids = prompt(60)
    logits = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)(torch.tensor([ids])).logits[0, :-1]
    expected = logits.log_softmax(-1).gather(1, torch.tensor(ids[1:])[:, None])[:, 0].tolist()
    assert batcher_of(folder, shape, prefill_chunk=16).score(ids) == pytest.approx(expected, abs=1e-4)


def test_every_token_but_the_last_has_the_experts_that_computed_it(folder: Path) -> None:
    found = ask(batcher_of(folder, prefill_chunk=16), "one", prompt(50))
    ids = [*prompt(50), *found.output_ids]
    assert len(ids) == 70
    assert np.array_equal(read(found.routed), routed_by_transformers(folder, ids)[:-1])


def test_cached_tokens_have_the_experts_of_whoever_computed_them(folder: Path) -> None:
    batcher = batcher_of(folder)
    first = ask(batcher, "one", prompt(50), routed_from=None)
    assert first.routed == b""
    turn = [*prompt(50), *first.output_ids, *prompt(9, 5)]
    second = ask(batcher, "two", turn)
    assert second.cached_tokens == 69
    whole = routed_by_transformers(folder, [*turn, *second.output_ids])[:-1]
    assert np.array_equal(read(second.routed), whole)
    third = ask(batcher, "two", turn, routed_from=69)
    assert np.array_equal(read(third.routed), whole[69:])


def test_a_crowd_that_is_put_back_keeps_its_experts(folder: Path) -> None:
    batcher = batcher_of(folder, kv_capacity=160)
    crowd = [submit(batcher, f"{i}", prompt(30, i), most=40) for i in range(4)]
    while batcher.busy:
        batcher.step()
    for number, chunks in enumerate(crowd):
        found = answer(chunks)
        ids = [*prompt(30, number), *found.output_ids]
        assert np.array_equal(read(found.routed), routed_by_transformers(folder, ids)[:-1])


def test_what_an_abort_left_uncomputed_is_unknown(folder: Path) -> None:
    batcher = batcher_of(folder, prefill_chunk=16)
    chunks = submit(batcher, "one", prompt(50))
    batcher.step()
    batcher.abort(lambda _: True)
    routed = read(answer(chunks).routed)
    assert np.array_equal(routed[:16], routed_by_transformers(folder, prompt(50))[:16])
    assert len(routed) == 49 and np.all(routed[16:] == -1)


def test_experts_of_kv_from_elsewhere_are_unknown(folder: Path) -> None:
    source, target = batcher_of(folder), batcher_of(folder)
    ask(source, "one", prompt(40))
    pages: KvPages = source.export(prompt(40))
    assert target.take(prompt(40), pages) == 40
    routed = read(ask(target, "two", [*prompt(40), 3, 4]).routed)
    assert np.all(routed[:40] == -1) and np.all(routed[40:] >= 0)


def test_the_record_comes_whole_over_the_wire() -> None:
    """From our server's answer to what its client reads; a request that asks for none gets none."""
    for routed_from in (1, None):
        request = GenerateRequest("r", [1, 2, 3], routed_from=routed_from)
        asked = parse_generate(orjson.loads(_body(request)))
        assert asked.routed_from == routed_from
        rows = bytes(range(8)) if asked.routed_from is not None else b""
        whole = Completion((7, 8), (-0.1, -0.2), ((0, "v1"),), FinishReason.STOP, routed=rows)
        [chunk] = Reading(request).chunks(orjson.loads(orjson.dumps(render_answer(asked, whole, whole))))
        assert chunk.routed == rows

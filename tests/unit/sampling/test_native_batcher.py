"""What the native engine computes, step by step, without its thread."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from gyre_engine.sampling import Chunk, Completion, FinishReason, SamplingParams
from gyre_engine.sampling.native.batcher import Batcher, Limits
from gyre_engine.sampling.native.sampler import request_key
from gyre_engine.sampling.native.sequence import Sequence
from gyre_engine.sampling.native.shape import ModelShape
from gyre_engine.sampling.native.weights import read_weights


@dataclass
class Call:
    """One submitted request and what came of it."""

    sequence: Sequence
    chunks: list[Chunk]

    @property
    def answer(self) -> Completion:
        answer = Completion()
        for chunk in self.chunks:
            answer = answer.plus(chunk)
        return answer


class Engine:
    """A batcher and a way to ask it."""

    def __init__(self, folder: Path, shape: ModelShape, **limits: int) -> None:
        self.shape = shape
        self.batcher = Batcher(
            shape, read_weights(folder, shape), "v7", Limits(**{"max_context": 512, "kv_capacity": 4096} | limits)
        )

    def submit(self, rid: str, ids: list[int], **params: object) -> Call:
        chunks: list[Chunk] = []
        how = SamplingParams(**({"max_tokens": 32, "seed": 5} | params))  # type: ignore[arg-type]
        sequence = Sequence(rid, list(ids), how, request_key(how.seed, rid), self.batcher.limits.longest, chunks.append)
        self.batcher.submit(sequence)
        return Call(sequence, chunks)

    def run(self) -> None:
        while self.batcher.busy:
            self.batcher.step()
            held = self.batcher.stats(paused=False)
            assert held.kv_tokens_used <= held.kv_tokens_capacity

    def ask(self, rid: str, ids: list[int], **params: object) -> Completion:
        call = self.submit(rid, ids, **params)
        self.run()
        return call.answer


@pytest.fixture(autouse=True)
def inference() -> Iterator[None]:
    with torch.inference_mode():
        yield


def prompt(length: int, start: int = 1) -> list[int]:
    return [(start + 7 * i * i + 3 * i) % 96 for i in range(length)]


def test_a_reused_prefix_gives_the_same_ids_and_logprobs(folder: Path, shape: ModelShape) -> None:
    warm, cold = Engine(folder, shape), Engine(folder, shape)
    first = warm.ask("one", prompt(100))
    turn = [*prompt(100), *first.output_ids, *prompt(11, 5)]
    before = warm.batcher.stats(paused=False)
    again, fresh = warm.ask("two", turn), cold.ask("two", turn)
    after = warm.batcher.stats(paused=False)
    # 100 + 32 tokens of history, whose last was sampled and never computed from; the prompt's last is left to the decode step.
    assert again.cached_tokens == after.cache_hit_tokens - before.cache_hit_tokens == 131
    assert after.prefill_tokens - before.prefill_tokens == 143 - 131 - 1
    assert fresh.cached_tokens == 0
    assert again.output_ids == fresh.output_ids
    assert again.logprobs == pytest.approx(fresh.logprobs, abs=2e-5)


def test_a_group_prefills_its_prompt_once(folder: Path, shape: ModelShape) -> None:
    engine = Engine(folder, shape)
    calls = [engine.submit(f"sample{i}", prompt(100)) for i in range(8)]
    engine.run()
    assert engine.batcher.stats(paused=False).prefill_tokens == 99
    assert len({call.answer.output_ids for call in calls}) == 8  # each draws its own


def test_a_request_draws_the_same_whoever_else_runs(folder: Path, shape: ModelShape) -> None:
    alone = Engine(folder, shape).ask("me", prompt(40))
    crowd = Engine(folder, shape, max_batch=6)
    for i in range(4):
        crowd.submit(f"early{i}", prompt(20 + i, i), max_tokens=5 + 9 * i)
    mine = crowd.submit("me", prompt(40))
    for i in range(6):
        crowd.submit(f"late{i}", prompt(30, i + 9), temperature=0.5 + i / 10, top_k=i)
    crowd.run()
    assert mine.answer.output_ids == alone.output_ids
    assert mine.answer.logprobs == pytest.approx(alone.logprobs, abs=2e-5)


def test_weights_change_between_two_tokens(folder: Path, other_folder: Path, shape: ModelShape) -> None:
    """C30: tokens 0-56 are v7's, 57-127 v8's, and v8 scores them as if it had read everything itself."""
    engine = Engine(folder, shape)
    call = engine.submit("long", prompt(30), max_tokens=128)
    while call.sequence.sampled < 57:
        engine.batcher.step()
    engine.batcher.swap(read_weights(other_folder, shape), "v8")
    engine.run()
    answer = call.answer
    assert answer.weight_spans == ((0, "v7"), (57, "v8"))
    assert len(answer.output_ids) == len(answer.logprobs) == 128
    whole = [*prompt(30), *answer.output_ids]
    v8 = Engine(other_folder, shape).batcher.score(whole)[29:]
    v7 = Engine(folder, shape).batcher.score(whole)[29:]
    assert answer.logprobs[:57] == pytest.approx(v7[:57], abs=2e-5)
    assert answer.logprobs[57:] == pytest.approx(v8[57:], abs=2e-5)
    assert answer.logprobs[57:] != pytest.approx(v7[57:], abs=0.1)


def test_no_kv_outlives_its_weights(folder: Path, other_folder: Path, shape: ModelShape) -> None:
    engine = Engine(folder, shape)
    engine.ask("old", prompt(100))
    engine.batcher.swap(read_weights(other_folder, shape), "v8")
    new = engine.ask("new", prompt(100))
    assert new.cached_tokens == 0
    assert new.logprobs == pytest.approx(Engine(other_folder, shape).ask("new", prompt(100)).logprobs, abs=2e-5)


@pytest.mark.parametrize("after_steps", [0, 1, 20])
def test_an_abort_keeps_what_was_sampled(folder: Path, shape: ModelShape, after_steps: int) -> None:
    engine = Engine(folder, shape, prefill_chunk=64)
    whole = engine.ask("x", prompt(100), max_tokens=60)
    fresh = Engine(folder, shape, prefill_chunk=64)
    call, other = fresh.submit("x", prompt(100), max_tokens=60), fresh.submit("y", prompt(50, 2))
    for _ in range(after_steps):
        fresh.batcher.step()
    sampled = call.sequence.sampled
    fresh.batcher.abort(lambda sequence: sequence.rid == "x")
    assert call.answer.finish_reason is FinishReason.ABORT
    assert call.answer.output_ids == whole.output_ids[:sampled]
    fresh.run()
    assert other.answer.finish_reason is FinishReason.LENGTH
    assert other.answer.output_ids == Engine(folder, shape).ask("y", prompt(50, 2)).output_ids
    assert fresh.batcher.stats(paused=False).running == 0


def test_what_was_aborted_is_not_computed_again(folder: Path, shape: ModelShape) -> None:
    engine = Engine(folder, shape)
    call = engine.submit("x", prompt(100), max_tokens=60)
    for _ in range(21):
        engine.batcher.step()
    engine.batcher.abort(lambda _: True)
    retried = engine.ask("x2", [*prompt(100), *call.answer.output_ids])
    assert retried.cached_tokens == 100 + 21 - 1


def test_a_small_capacity_puts_back_and_loses_nothing(folder: Path, shape: ModelShape) -> None:
    """Six sequences of 190 tokens in room for 400: they take turns, and each comes out as if it had been alone."""
    small = Engine(folder, shape, kv_capacity=400)
    calls = [small.submit(f"r{i}", prompt(40, i), max_tokens=150) for i in range(6)]
    small.run()
    large = Engine(folder, shape)
    for i, call in enumerate(calls):
        alone = large.ask(f"r{i}", prompt(40, i), max_tokens=150)
        assert call.answer.output_ids == alone.output_ids
        assert call.answer.logprobs == pytest.approx(alone.logprobs, abs=2e-5)


def test_a_sequence_ends_where_the_capacity_does(folder: Path, shape: ModelShape) -> None:
    answer = Engine(folder, shape, kv_capacity=100).ask("x", prompt(40), max_tokens=500)
    assert answer.finish_reason is FinishReason.LENGTH
    assert len(answer.output_ids) == 60


def test_a_long_prefill_does_not_stop_the_others(folder: Path, shape: ModelShape) -> None:
    engine = Engine(folder, shape, prefill_chunk=16)
    short = engine.submit("short", prompt(5), max_tokens=100)
    engine.batcher.step()
    engine.submit("long", prompt(400, 9), max_tokens=4)
    before = short.sequence.sampled
    for _ in range(10):
        engine.batcher.step()
    assert short.sequence.sampled == before + 10


def test_score_leaves_no_trace(folder: Path, shape: ModelShape) -> None:
    engine = Engine(folder, shape, prefill_chunk=16)
    before = engine.batcher.stats(paused=False)
    chunked = engine.batcher.score(prompt(60))
    assert engine.batcher.stats(paused=False) == before
    assert chunked == pytest.approx(Engine(folder, shape).batcher.score(prompt(60)), abs=2e-5)

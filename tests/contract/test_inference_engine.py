"""What every InferenceEngine does, over native, scripted, native behind HTTP, and the real SGLang (slow)."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import torch
import uvicorn

from gyre_engine.lifeline import tied
from gyre_engine.sampling import (
    Chunk,
    Completion,
    ContextTooLong,
    EngineNotServing,
    FinishReason,
    GenerateRequest,
    InferenceEngine,
    SamplingParams,
    UnknownModel,
    WeightsUnreadable,
    complete,
)
from gyre_engine.sampling.native import NativeEngine
from gyre_engine.sampling.native.fresh import QUICKSTART, write_fresh_model
from gyre_engine.sampling.scripted import Script, ScriptedEngine, scripted_logprob
from gyre_engine.sampling.sglang import SGLangEngine
from infra.sglang.launch import PYTHON, ended_together, sglang_on_cpu
from producers.cells.engine_server import engine_app

CONTEXT = 4096
BATCH = 16
TINY = replace(QUICKSTART, vocab=256, hidden=64, layers=2, heads=4, kv_heads=2, head_dim=16, ffn=128, max_context=CONTEXT)
BLOCK = 16
BOOT_SECONDS = 900  # SGLang imports for a minute of CPU time, on a busy machine for many


@dataclass(frozen=True)
class Subject:
    """An engine at version v1, and the folders it can be given."""

    engine: InferenceEngine
    first: Path
    second: Path
    reference: Any  # a transformers model of `first`, or None where the outputs are given
    gives_memory: bool = True


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    root = tmp_path_factory.mktemp("models")
    return (
        write_fresh_model(root / "v1", TINY, seed=1, spread=0.15),
        write_fresh_model(root / "v2", TINY, seed=2, spread=0.15),
    )


@pytest.fixture(scope="module")
def reference(folders: tuple[Path, Path]) -> Any:
    from transformers import Qwen3ForCausalLM

    return Qwen3ForCausalLM.from_pretrained(folders[0], dtype=torch.float32)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def served(engine: InferenceEngine) -> Iterator[str]:
    """The engine's server in a thread of its own, as far from the test's loop as another process."""
    port = free_port()
    config = uvicorn.Config(engine_app(engine), host="127.0.0.1", port=port, log_level="warning", timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join()


@contextmanager
def real_sglang(folder: Path, log: Path) -> Iterator[str]:
    port = free_port()
    launch = sglang_on_cpu(str(folder), "v1", host="127.0.0.1", port=port, environment=os.environ, max_batch=BATCH)
    with log.open("wb") as output:
        process = subprocess.Popen(tied(ended_together(launch.argv)), env=launch.env, stdout=output, stderr=output)
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            process.kill()
            process.wait()


async def answering(engine: InferenceEngine) -> None:
    """Wait until the server behind a client answers."""
    async with asyncio.timeout(BOOT_SECONDS):
        while True:
            with suppress(EngineNotServing):
                await engine.stats()
                return
            await asyncio.sleep(0.1)


@pytest.fixture(scope="module")
def sglang_url(folders: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    if not PYTHON.exists():
        pytest.skip("SGLang's environment is not installed (infra/sglang)")
    with real_sglang(folders[0], tmp_path_factory.mktemp("sglang") / "log") as url:
        yield url


REAL = pytest.param("sglang", marks=[pytest.mark.slow, pytest.mark.timeout(1200)])


@pytest.fixture(params=["native", "scripted", "native-http", REAL])
async def subject(request: pytest.FixtureRequest, folders: tuple[Path, Path], reference: Any) -> AsyncIterator[Subject]:
    first, second = folders
    if request.param == "scripted":
        engine = ScriptedEngine(lambda r: Script(played(r), piece=3), version="v1", max_context=CONTEXT)
        yield Subject(engine, first, second, None)
    elif request.param == "native":
        native = NativeEngine(first, "v1", kv_capacity=16384, max_batch=BATCH)
        yield Subject(native, first, second, reference)
        await native.close()
    elif request.param == "native-http":
        with served(NativeEngine(first, "v1", kv_capacity=16384, max_batch=BATCH)) as url:
            client = SGLangEngine(url)
            await answering(client)
            yield Subject(client, first, second, reference)
            await client.close()
    else:
        client = SGLangEngine(request.getfixturevalue("sglang_url"))
        await answering(client)
        await client.load_weights(first, "v1")
        yield Subject(client, first, second, reference, gives_memory=False)
        await client.close()


def played(request: GenerateRequest) -> tuple[int, ...]:
    """Ids that differ, and depend on the prompt alone."""
    return tuple((sum(request.input_ids) + 7 * i) % 256 for i in range(CONTEXT))


DEFAULTS = SamplingParams()
ENDLESS = SamplingParams(max_tokens=CONTEXT - 50, seed=1)
"""More than any engine samples before the test's next word reaches it."""


def asking(name: str, ids: list[int], params: SamplingParams = DEFAULTS, *, streamed: bool = True) -> GenerateRequest:
    """A request whose rid was never used before."""
    return GenerateRequest(f"{name}-{uuid4().hex}", ids, params, streamed)


def prompt(length: int, start: int = 3) -> list[int]:
    return [(start + 11 * i) % 250 for i in range(length)]


def logprobs_by_reference(subject: Subject, ids: list[int], temperature: float) -> list[float]:
    """Of ids[1:], by transformers; by the script where outputs are scripted."""
    if subject.reference is None:
        return [scripted_logprob(token) for token in ids[1:]]
    with torch.no_grad():
        logits = subject.reference(torch.tensor([ids])).logits[0, :-1] / temperature
    return [float(row[token]) for row, token in zip(logits.log_softmax(-1), ids[1:], strict=True)]


async def test_every_sampled_token_has_an_id_a_logprob_and_a_version(subject: Subject) -> None:
    answer = await complete(subject.engine, asking("whole", prompt(20), SamplingParams(max_tokens=33, seed=1)))
    assert len(answer.output_ids) == len(answer.logprobs) == 33
    assert answer.finish_reason is FinishReason.LENGTH
    assert answer.weight_spans == ((0, "v1"),)


async def test_an_answer_that_is_not_streamed_is_the_same(subject: Subject) -> None:
    params = SamplingParams(max_tokens=20, temperature=0.0)
    parts = await complete(subject.engine, asking("parts", prompt(20), params))
    whole = await complete(subject.engine, asking("whole", prompt(20), params, streamed=False))
    assert whole.output_ids == parts.output_ids
    assert whole.logprobs == pytest.approx(parts.logprobs, abs=1e-4)


@pytest.mark.parametrize("temperature", [1.0, 0.6])
async def test_logprobs_are_those_of_the_reference_at_the_temperature(subject: Subject, temperature: float) -> None:
    params = SamplingParams(max_tokens=40, temperature=temperature, seed=3)
    answer = await complete(subject.engine, asking(f"t{temperature}", prompt(30), params))
    expected = logprobs_by_reference(subject, prompt(30) + list(answer.output_ids), temperature)
    assert answer.logprobs == pytest.approx(expected[29:], abs=1e-4)


async def test_score_is_that_of_the_reference(subject: Subject) -> None:
    assert await subject.engine.score(prompt(50)) == pytest.approx(logprobs_by_reference(subject, prompt(50), 1.0), abs=1e-4)


async def test_a_score_that_reuses_is_that_of_the_last_tokens(subject: Subject) -> None:
    """What the cache holds of the first 48 ids needs no computing, and is not scored."""
    ids, whole = prompt(64, 9), await subject.engine.score(prompt(64, 9))
    for _ in range(2):
        found = await subject.engine.score(ids, reuse=48)
        assert 64 - 1 - 48 <= len(found) <= 64 - 1
        assert found == pytest.approx(whole[-len(found) :], abs=1e-4)
    assert len(found) == 64 - 1 - 48


async def test_the_stop_token_is_delivered_with_its_logprob(subject: Subject) -> None:
    """C12: whatever stopped the answer is its last id, so the next prompt can begin with exactly what was sampled."""
    greedy = SamplingParams(max_tokens=30, temperature=0.0)
    free = await complete(subject.engine, asking("free", prompt(20), greedy))
    stop = free.output_ids[10]
    end = free.output_ids.index(stop) + 1
    answer = await complete(subject.engine, asking("stopped", prompt(20), replace(greedy, stop_token_ids=(stop, 255))))
    assert answer.output_ids == free.output_ids[:end]
    assert len(answer.logprobs) == end
    assert answer.finish_reason is FinishReason.STOP


async def test_the_next_turn_computes_only_what_is_new(subject: Subject) -> None:
    first = await complete(subject.engine, asking("turn1", prompt(200, 5), SamplingParams(max_tokens=20, seed=1)))
    history = prompt(200, 5) + list(first.output_ids)
    second = await complete(subject.engine, asking("turn2", [*history, *prompt(9)], SamplingParams(max_tokens=20, seed=1)))
    # The last sampled token has no KV yet: nothing was computed from it.
    assert len(history) - 1 - BLOCK < second.cached_tokens <= len(history)
    expected = logprobs_by_reference(subject, [*history, *prompt(9), *second.output_ids], 1.0)
    assert second.logprobs == pytest.approx(expected[-20:], abs=1e-4)


async def opened(engine: InferenceEngine, request: GenerateRequest) -> tuple[AsyncIterator[Chunk], Completion]:
    """A generation after its first chunk."""
    chunks = engine.generate(request)
    return chunks, Completion().plus(await anext(chunks))


async def rest(chunks: AsyncIterator[Chunk], so_far: Completion) -> Completion:
    async for chunk in chunks:
        so_far = so_far.plus(chunk)
    return so_far


async def free_again(engine: InferenceEngine) -> None:
    async with asyncio.timeout(1.0):
        while (await engine.stats()).running:
            await asyncio.sleep(0.02)


async def test_an_abort_keeps_what_was_sampled(subject: Subject) -> None:
    request = asking("stopme", prompt(20), ENDLESS)
    chunks, so_far = await opened(subject.engine, request)
    await subject.engine.abort(request.rid)
    answer = await rest(chunks, so_far)
    assert answer.finish_reason is FinishReason.ABORT
    assert 1 <= len(answer.output_ids) == len(answer.logprobs) < ENDLESS.max_tokens
    await free_again(subject.engine)


async def test_an_abort_ends_only_the_request_it_names(subject: Subject) -> None:
    """SGLang itself matches by prefix."""
    name, params = uuid4().hex, SamplingParams(max_tokens=300, seed=1)
    short, long = GenerateRequest(f"{name}.1", prompt(20), ENDLESS), GenerateRequest(f"{name}.10", prompt(20, 9), params)
    one, other = await opened(subject.engine, short), await opened(subject.engine, long)
    await subject.engine.abort(short.rid)
    assert (await rest(*one)).finish_reason is FinishReason.ABORT
    assert (await rest(*other)).finish_reason is FinishReason.LENGTH


async def test_an_abort_of_an_unknown_request_is_no_error(subject: Subject) -> None:
    await subject.engine.abort("nobody")


async def test_a_listener_that_leaves_frees_its_slot(subject: Subject) -> None:
    chunks, _ = await opened(subject.engine, asking("leave", prompt(20), ENDLESS))
    await chunks.aclose()  # type: ignore[attr-defined]
    await free_again(subject.engine)


async def test_a_paused_engine_refuses_and_what_waits_goes_on_after(subject: Subject) -> None:
    chunks, so_far = await opened(subject.engine, asking("waits", prompt(20), SamplingParams(max_tokens=400, seed=1)))
    await subject.engine.pause(abort=False)
    with pytest.raises(EngineNotServing):
        await complete(subject.engine, asking("refused", prompt(20)))
    await subject.engine.resume()
    answer = await rest(chunks, so_far)
    assert answer.finish_reason is FinishReason.LENGTH
    assert len(answer.output_ids) == 400
    assert (await complete(subject.engine, asking("after", prompt(20), SamplingParams(max_tokens=4)))).finish_reason


async def test_a_pause_with_abort_ends_those_in_flight(subject: Subject) -> None:
    chunks, so_far = await opened(subject.engine, asking("cut", prompt(20), ENDLESS))
    await subject.engine.pause(abort=True)
    answer = await rest(chunks, so_far)
    await subject.engine.resume()
    assert answer.finish_reason is FinishReason.ABORT
    assert len(answer.output_ids) == len(answer.logprobs)


async def test_a_drain_says_what_it_interrupted_and_lets_nothing_in(subject: Subject) -> None:
    """Real SGLang cannot say it; what was in flight hands over its partial output all the same."""
    asked = [asking(f"drained{i}", prompt(20, i), ENDLESS) for i in range(2)]
    running = [await opened(subject.engine, request) for request in asked]
    said = {one.rid: one.tokens for one in await subject.engine.drain()}
    with pytest.raises(EngineNotServing):
        await complete(subject.engine, asking("refused", prompt(20)))
    answers = [await rest(*one) for one in running]
    await subject.engine.resume()
    assert [answer.finish_reason for answer in answers] == [FinishReason.ABORT] * 2
    assert said in ({}, {r.rid: 20 + len(a.output_ids) for r, a in zip(asked, answers, strict=True)})


async def test_memory_that_was_given_back_comes_back_with_the_next_weights(subject: Subject) -> None:
    """In the order that SGLang demands: drain, release, reclaim, load, resume; no KV of before is gone on from."""
    if not subject.gives_memory:
        pytest.skip("SGLang calls CUDA's runtime when it gives memory back: tests/gpu/sglang.sh memory does this there")
    running = await opened(subject.engine, asking("cut", prompt(20), ENDLESS))
    await subject.engine.drain()
    await rest(*running)
    await subject.engine.release_memory()
    await subject.engine.reclaim_memory()
    await subject.engine.load_weights(subject.second, "v2")
    await subject.engine.resume()
    answer = await complete(subject.engine, asking("after", prompt(20), SamplingParams(max_tokens=8, seed=1)))
    assert (answer.weight_spans, answer.cached_tokens) == (((0, "v2"),), 0)
    scores = await subject.engine.score(prompt(20) + list(answer.output_ids))
    assert answer.logprobs == pytest.approx(scores[19:], abs=1e-4)


async def test_a_publication_aborts_nothing_in_flight(subject: Subject) -> None:
    """C28 and C30: 16 calls stay open over a publication; each id is stamped with the version that made it."""
    params = SamplingParams(max_tokens=400, seed=1)
    running = await asyncio.gather(*(opened(subject.engine, asking(f"c{i}", prompt(20, i), params)) for i in range(16)))
    await subject.engine.load_weights(subject.second, "v2")
    answers = await asyncio.gather(*(rest(*one) for one in running))
    assert [answer.finish_reason for answer in answers] == [FinishReason.LENGTH] * 16
    assert {len(answer.output_ids) for answer in answers} == {400}
    for answer in answers:
        assert [version for _, version in answer.weight_spans] == ["v1", "v2"]
        assert 1 <= answer.weight_spans[1][0] < 400
    assert (await subject.engine.stats()).weight_version == "v2"


async def test_what_goes_on_under_new_weights_is_scored_by_them_alone(subject: Subject) -> None:
    """No KV of the old weights is continued on: after the publication the log-probabilities are those of the new model."""
    request = asking("over", prompt(40), SamplingParams(max_tokens=1000, seed=1))
    chunks, so_far = await opened(subject.engine, request)
    await subject.engine.load_weights(subject.second, "v2")
    answer = await rest(chunks, so_far)
    scores = await subject.engine.score(prompt(40) + list(answer.output_ids))
    first = answer.weight_spans[1][0]
    assert answer.logprobs[first:] == pytest.approx(scores[39 + first :], abs=1e-4)


async def test_weights_that_cannot_be_read_leave_those_in_use(subject: Subject, tmp_path: Path) -> None:
    with pytest.raises((WeightsUnreadable, UnknownModel)):
        await subject.engine.load_weights(tmp_path / "nothing", "v9")
    assert (await subject.engine.stats()).weight_version == "v1"
    answer = await complete(subject.engine, asking("still", prompt(20), SamplingParams(max_tokens=4)))
    assert answer.weight_spans == ((0, "v1"),)


async def test_a_prompt_over_the_context_names_the_limit(subject: Subject) -> None:
    with pytest.raises(ContextTooLong, match=str(CONTEXT)) as refused:
        await complete(subject.engine, asking("long", prompt(CONTEXT), SamplingParams(max_tokens=4)))
    assert refused.value.length == CONTEXT


async def test_an_answer_ends_where_the_context_does(subject: Subject) -> None:
    answer = await complete(subject.engine, asking("edge", prompt(CONTEXT - 10), SamplingParams(max_tokens=100)))
    assert answer.finish_reason is FinishReason.LENGTH
    assert 8 <= len(answer.output_ids) <= 10


async def test_stats_count_what_was_done(subject: Subject) -> None:
    before = await subject.engine.stats()
    await complete(subject.engine, asking("count", prompt(30, 77), SamplingParams(max_tokens=25)))
    after = await subject.engine.stats()
    assert after.generated_tokens - before.generated_tokens == 25
    computed = after.prefill_tokens - before.prefill_tokens + after.cache_hit_tokens - before.cache_hit_tokens
    assert computed in (29, 30)  # native computes the last prompt token in its first decode step
    assert (after.running, after.waiting, after.weight_version) == (0, 0, "v1")
    assert after.kv_tokens_used <= after.kv_tokens_capacity

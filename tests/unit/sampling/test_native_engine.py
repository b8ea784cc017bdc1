"""The native engine's thread and its process: what breaks is told, what is idle costs nothing, what is light stays light."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from gyre_engine.sampling import (
    EngineFailed,
    EngineNotServing,
    GenerateRequest,
    SamplingParams,
    UnknownModel,
    WeightsUnreadable,
    complete,
)
from gyre_engine.sampling.native import NativeEngine
from gyre_engine.sampling.native.fresh import write_fresh_model
from gyre_engine.sampling.native.shape import ModelShape, read_shape
from gyre_engine.sampling.native.weights import read_weights
from gyre_engine.sampling.sglang import SGLangEngine
from producers.cells.engine_server import end_with, run_engine_server
from tests.forks import FORKED

LONG = SamplingParams(max_tokens=480, seed=1)


async def test_an_error_of_the_thread_reaches_everybody(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = NativeEngine(folder, "v1")

    def break_down(*_: object) -> None:
        raise MemoryError("no KV left")

    monkeypatch.setattr(engine._batcher, "_decode", break_down)
    calls = [asyncio.create_task(complete(engine, GenerateRequest(f"r{i}", [1, 2, 3]))) for i in range(3)]
    for failed in await asyncio.gather(*calls, return_exceptions=True):
        assert isinstance(failed, EngineFailed)
        assert "no KV left" in str(failed)
    with pytest.raises(EngineFailed, match="restart"):
        await engine.stats()
    await engine.close()


async def test_what_was_asked_and_not_heard_when_the_thread_broke_is_told_too(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = NativeEngine(folder, "v1")
    computing, asked = threading.Event(), threading.Event()

    def break_down(*_: object) -> None:
        computing.set()
        asked.wait(60)
        raise MemoryError("no KV left")

    monkeypatch.setattr(engine._batcher, "_decode", break_down)
    first = asyncio.create_task(complete(engine, GenerateRequest("first", [1, 2, 3])))
    await asyncio.to_thread(computing.wait, 60)
    gone = asyncio.create_task(engine.stats())
    late = [asyncio.create_task(complete(engine, GenerateRequest("late", [1, 2, 3]))), asyncio.create_task(engine.stats())]
    async with asyncio.timeout(60):
        while len(engine._inbox) < 1 + len(late):
            await asyncio.sleep(0)
        gone.cancel()
        await asyncio.gather(gone, return_exceptions=True)
        asked.set()
        for failed in await asyncio.gather(first, *late, return_exceptions=True):
            assert isinstance(failed, EngineFailed) and "no KV left" in str(failed)
    await engine.close()


async def test_a_question_whose_asker_has_left_breaks_nothing(folder: Path) -> None:
    """As after a pause of the whole process: its clients have gone meanwhile, and their requests stand before those of others."""
    engine = NativeEngine(folder, "v1")
    busy, go_on = threading.Event(), threading.Event()

    def wait() -> None:
        busy.set()
        go_on.wait(60)

    engine._post(wait)
    await asyncio.to_thread(busy.wait, 60)
    gone = [asyncio.create_task(complete(engine, GenerateRequest("gone", [1, 2, 3]))), asyncio.create_task(engine.stats())]
    async with asyncio.timeout(20):
        while len(engine._inbox) < len(gone):
            await asyncio.sleep(0)
        for asker in gone:
            asker.cancel()
        await asyncio.gather(*gone, return_exceptions=True)
        asked = asyncio.create_task(engine.stats())
        await asyncio.sleep(0)
        go_on.set()
        assert (await asked).running == 0
        assert len((await complete(engine, GenerateRequest("next", [1, 2, 3], SamplingParams(max_tokens=4)))).output_ids) <= 4
    await engine.close()


async def test_an_engine_whose_thread_broke_takes_its_process_with_it(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would serve nobody for ever; its supervisor starts the next. One that was closed ends as it was told to."""
    signals = list[tuple[int, int]]()
    monkeypatch.setattr(os, "kill", lambda pid, number: signals.append((pid, number)))
    closed = NativeEngine(folder, "v1")
    await closed.close()
    end_with(closed)
    assert signals == []
    broken = NativeEngine(folder, "v1")
    monkeypatch.setattr(broken._batcher, "_decode", lambda *_: 1 / 0)
    with pytest.raises(EngineFailed, match="restart"):
        await complete(broken, GenerateRequest("r", [1, 2, 3]))
    await asyncio.to_thread(end_with, broken)
    assert signals == [(os.getpid(), signal.SIGTERM)]


async def test_a_closed_engine_ends_what_is_in_flight(folder: Path) -> None:
    engine = NativeEngine(folder, "v1")
    chunks = engine.generate(GenerateRequest("open", [1, 2, 3], LONG))
    await anext(chunks)
    await engine.close()
    with pytest.raises(EngineNotServing, match="closed"):
        async for _ in chunks:
            pass
    with pytest.raises(EngineNotServing, match="closed"):
        await engine.stats()


async def test_a_rid_names_one_request(folder: Path) -> None:
    engine = NativeEngine(folder, "v1")
    chunks = engine.generate(GenerateRequest("same", [1, 2, 3], LONG))
    await anext(chunks)
    with pytest.raises(ValueError, match="same"):
        await complete(engine, GenerateRequest("same", [1, 2, 3]))
    assert len([chunk async for chunk in chunks]) >= 1  # the first one goes on
    await engine.close()


async def test_ids_of_another_vocabulary_are_refused(folder: Path) -> None:
    engine = NativeEngine(folder, "v1")
    with pytest.raises(ValueError, match=r"0\.\.95"):
        await complete(engine, GenerateRequest("far", [1, 96]))
    with pytest.raises(ValueError, match="no input ids"):
        await complete(engine, GenerateRequest("none", []))
    await engine.close()


async def test_an_idle_and_a_paused_engine_use_no_cpu(folder: Path) -> None:
    engine = NativeEngine(folder, "v1")
    chunks = engine.generate(GenerateRequest("held", [1, 2, 3], LONG))
    await anext(chunks)
    await engine.pause(abort=False)
    before = time.process_time()
    await asyncio.sleep(0.5)  # the time over which the CPU is measured, not a wait for anything
    assert time.process_time() - before < 0.1
    await engine.resume()
    await engine.close()


@pytest.mark.parametrize(
    ("change", "error"),
    [({"model_type": "mamba"}, "mamba"), ({"rope_parameters": {"rope_type": "yarn"}}, "yarn"), (None, "cannot be read")],
)
def test_a_model_that_is_not_known_is_named(
    tmp_path: Path, shape: ModelShape, change: dict[str, object] | None, error: str
) -> None:
    import json

    config = write_fresh_model(tmp_path, shape, seed=1) / "config.json"
    config.write_text("{" if change is None else json.dumps(json.loads(config.read_text()) | change))
    with pytest.raises(UnknownModel, match=error):
        read_shape(tmp_path)


def test_weights_of_another_shape_are_named(folder: Path, shape: ModelShape) -> None:
    with pytest.raises(WeightsUnreadable, match=r"gate_proj.weight is \(48, 32\), its config.json says \(64, 32\)"):
        read_weights(folder, replace(shape, ffn=64))


@pytest.mark.parametrize("architecture", ["qwen2", "llama"])
async def test_other_architectures_score_as_transformers_does(tmp_path: Path, shape: ModelShape, architecture: str) -> None:
    from transformers import AutoModelForCausalLM

    plain = replace(shape, architecture=architecture, qk_norm=False, qkv_bias=architecture == "qwen2", tied=False)
    folder = write_fresh_model(tmp_path, plain, seed=4, spread=0.2)
    ids = [(7 * i * i) % 96 for i in range(60)]
    with torch.no_grad():
        reference = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        logprobs = reference(torch.tensor([ids])).logits[0, :-1].log_softmax(-1)
    engine = NativeEngine(folder, "v1")
    expected = [float(row[token]) for row, token in zip(logprobs, ids[1:], strict=True)]
    assert await engine.score(ids) == pytest.approx(expected, abs=1e-4)
    await engine.close()


def test_the_port_and_its_light_implementations_never_import_torch() -> None:
    modules = "gyre_engine.sampling, gyre_engine.sampling.sglang, gyre_engine.sampling.scripted, producers.cells.engine_server"
    program = f"import sys, {modules}; sys.exit(bool({{'torch', 'transformers', 'safetensors'}} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


async def test_a_forked_process_serves_until_it_is_terminated(folder: Path) -> None:
    """As a cell starts it: out of a fork server that has imported torch."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    where = {"host": "127.0.0.1", "port": port, "kv_capacity": 4096, "max_batch": 4}
    process = FORKED.Process(target=run_engine_server, args=(os.fspath(folder), "v7"), kwargs=where)
    process.start()
    client = SGLangEngine(f"http://127.0.0.1:{port}")
    try:
        async with asyncio.timeout(120):
            while True:
                with suppress(EngineNotServing):
                    assert (await client.stats()).kv_tokens_capacity == 4096
                    break
                await asyncio.sleep(0.05)
        answer = await complete(client, GenerateRequest("r", [1, 2, 3], SamplingParams(max_tokens=8)))
        assert (len(answer.output_ids), answer.weight_spans) == (8, ((0, "v7"),))
    finally:
        process.terminate()
        await asyncio.to_thread(process.join, 30)
        await client.close()
    assert process.exitcode is not None

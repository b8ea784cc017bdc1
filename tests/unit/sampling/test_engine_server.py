"""The server of an engine: what a client that leaves frees (case C11), and errors as a status and JSON."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import orjson
import pytest
import uvicorn

from gyre_engine.sampling import EngineFailed, GenerateRequest, SamplingParams, complete
from gyre_engine.sampling.scripted import Gate, Script, ScriptedEngine, scripted_logprob
from gyre_engine.sampling.sglang import SGLangEngine
from producers.cells.engine_server import engine_app

IDS = tuple(range(100, 3100))


@dataclass
class Served:
    engine: ScriptedEngine
    gate: Gate
    port: int

    async def post(self, path: str, body: dict[str, Any] | bytes) -> httpx.Response:
        content = body if isinstance(body, bytes) else orjson.dumps(body)
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{self.port}") as client:
            return await client.post(path, content=content)


@asynccontextmanager
async def serving(engine: ScriptedEngine, gate: Gate) -> AsyncIterator[Served]:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()  # connections wait here until the server takes them
        config = uvicorn.Config(engine_app(engine), log_level="warning", timeout_graceful_shutdown=1)
        server = uvicorn.Server(config)
        task = asyncio.create_task(server.serve(sockets=[listener]))
        try:
            yield Served(engine, gate, listener.getsockname()[1])
        finally:
            server.should_exit = True
            await task


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    gate = Gate()
    async with serving(ScriptedEngine(lambda _: Script(IDS, piece=1), gate=gate, max_context=8192), gate) as one:
        yield one


async def within_a_second(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(1.0):
        while not condition():
            await asyncio.sleep(0.01)


async def open_call(port: int, *, stream: bool) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    body = orjson.dumps({"rid": "gone", "input_ids": [1, 2, 3], "stream": stream, "sampling_params": {"max_new_tokens": 3000}})
    writer.write(b"POST /generate HTTP/1.1\r\nHost: engine\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))
    await writer.drain()
    return reader, writer


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_leaves_during_prefill_frees_the_slot(served: Served, stream: bool) -> None:
    """C11 a: no token was sampled yet, so no failing write can tell."""
    _, writer = await open_call(served.port, stream=stream)
    await within_a_second(lambda: len(served.engine.requests) == 1)
    writer.close()
    await within_a_second(lambda: served.engine.aborted == ["gone"])
    assert (await served.engine.stats()).running == 0


async def test_a_client_that_leaves_after_five_tokens_frees_the_slot(served: Served) -> None:
    """C11 b."""
    reader, writer = await open_call(served.port, stream=True)
    await served.gate.release(5)
    for _ in range(5):
        await reader.readuntil(b"data: ")
    writer.close()
    await within_a_second(lambda: served.engine.aborted == ["gone"])
    stats = await served.engine.stats()
    assert (stats.running, stats.generated_tokens) == (0, 5)


async def test_a_closed_iterator_of_the_client_aborts_at_the_engine(served: Served) -> None:
    client = SGLangEngine(f"http://127.0.0.1:{served.port}")
    await served.gate.release(5)
    chunks = client.generate(GenerateRequest("left", [1, 2, 3], SamplingParams(max_tokens=3000)))
    first = await anext(chunks)
    assert first.output_ids == IDS[:1]
    await chunks.aclose()  # type: ignore[attr-defined]
    await within_a_second(lambda: served.engine.aborted == ["left"])
    await client.close()


async def test_a_paused_engine_is_503_and_its_remedy(served: Served) -> None:
    await served.post("/pause_generation", {"mode": "retract"})
    answer = await served.post("/generate", {"input_ids": [1]})
    assert answer.status_code == 503
    assert "resumed" in answer.json()["error"]["message"]
    await served.post("/continue_generation", {})
    await served.gate.open()
    assert (await served.post("/generate", {"input_ids": [1]})).status_code == 200


async def test_a_prompt_over_the_context_is_400_with_the_numbers(served: Served) -> None:
    answer = await served.post("/generate", {"input_ids": [1] * 8192, "stream": True})
    assert answer.status_code == 400
    assert (answer.json()["error"]["length"], answer.json()["error"]["limit"]) == (8192, 8192)


@pytest.mark.parametrize(
    ("path", "body", "word"),
    [
        ("/generate", {"text": "hello"}, "input_ids"),
        ("/generate", {"input_ids": []}, "input_ids"),
        ("/generate", {"input_ids": [1], "sampling_params": {"top_p": 0}}, "top_p"),
        ("/generate", b"{nonsense", "unexpected"),
        ("/update_weights_from_disk", {"model_path": "/x"}, "weight_version"),
        ("/update_weights_from_disk", {"model_path": "/nowhere/at/all", "weight_version": "v2"}, "/nowhere/at/all"),
    ],
)
async def test_a_bad_body_is_400_and_named(served: Served, path: str, body: Any, word: str) -> None:
    answer = await served.post(path, body)
    assert answer.status_code == 400
    assert word in answer.json()["error"]["message"]


async def test_a_whole_answer_has_sglangs_fields(served: Served) -> None:
    await served.gate.open()
    answer = (await served.post("/generate", {"rid": "r", "input_ids": [1, 2], "sampling_params": {"max_new_tokens": 3}})).json()
    assert answer == {
        "output_ids": [100, 101, 102],
        "meta_info": {
            "id": "r",
            "prompt_tokens": 2,
            "completion_tokens": 3,
            "cached_tokens": 0,
            "output_token_logprobs": [[scripted_logprob(token), token, None] for token in (100, 101, 102)],
            "finish_reason": {"type": "length", "length": 3},
            "weight_version": "v1",
            "weight_versions": [{"version": "v1", "start": 0, "end": 3}],
        },
    }


async def test_an_engine_that_breaks_midway_tells_the_client() -> None:
    gate = Gate()
    engine = ScriptedEngine([Script(IDS[:4], piece=1, error=EngineFailed("the device fell off: restart it"))], gate=gate)
    async with serving(engine, gate) as served:
        await gate.open()
        client = SGLangEngine(f"http://127.0.0.1:{served.port}")
        with pytest.raises(EngineFailed, match="the device fell off"):
            await complete(client, GenerateRequest("broken", [1, 2, 3]))
        await client.close()


@pytest.mark.parametrize("streamed", [True, False])
async def test_a_call_that_is_aborted_before_its_first_token_ends_with_nothing(served: Served, streamed: bool) -> None:
    """As at a role switch: the proxy takes the call elsewhere, so this must be an answer and no error."""
    client = SGLangEngine(f"http://127.0.0.1:{served.port}")
    request = GenerateRequest("early", [1, 2, 3], SamplingParams(max_tokens=30), streamed=streamed)
    call = asyncio.create_task(complete(client, request))
    while not (await client.stats()).running:
        await asyncio.sleep(0)
    await client.pause(abort=True)
    answer = await asyncio.wait_for(call, 10)
    assert (answer.output_ids, answer.logprobs, answer.weight_spans, answer.finish_reason) == ((), (), (), "abort")
    await client.close()

"""KV that moves from one engine's server to another's, over a transfer."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
import uvicorn

from gyre_engine.sampling import EngineFailed, FinishReason, GenerateRequest, SamplingParams, complete
from gyre_engine.sampling.kv import KvTicket
from gyre_engine.sampling.native import NativeEngine
from gyre_engine.sampling.sglang import SGLangEngine
from gyre_engine.transfer.tcp import TcpTransfer
from producers.cells.engine_kv import KvDesk
from producers.cells.engine_server import engine_app

SECRET = b"shared by the cells of one run.."
PROMPT = [(5 * i * i + i) % 96 for i in range(150)]


@asynccontextmanager
async def cell(folder: Path, version: str, *, keep_kv: bool = False) -> AsyncIterator[SGLangEngine]:
    """An engine's server with its transfer, and a client of it."""
    engine, transfer = NativeEngine(folder, version, keep_kv=keep_kv), TcpTransfer(secret=SECRET)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        app = engine_app(engine, kv=KvDesk(engine, transfer, keep_kv=keep_kv))
        server = uvicorn.Server(uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=1))
        task = asyncio.create_task(server.serve(sockets=[listener]))
        client = SGLangEngine(f"http://127.0.0.1:{listener.getsockname()[1]}")
        try:
            yield client
        finally:
            await client.close()
            server.should_exit = True
            await task
            transfer.close()


@pytest.fixture
async def cells(folder: Path, other_folder: Path) -> AsyncIterator[tuple[SGLangEngine, SGLangEngine, SGLangEngine]]:
    """Two cells of version v7, one of v8."""
    async with AsyncExitStack() as stack:
        source = await stack.enter_async_context(cell(folder, "v7"))
        target = await stack.enter_async_context(cell(folder, "v7"))
        newer = await stack.enter_async_context(cell(other_folder, "v8"))
        yield source, target, newer


async def interrupted(source: SGLangEngine, rid: str) -> list[int]:
    """A request that is drained while it samples; its ids so far."""
    chunks = source.generate(GenerateRequest(rid, PROMPT, SamplingParams(max_tokens=340, seed=1)))
    ids = list((await anext(chunks)).output_ids)
    [said] = await source.drain()
    async for chunk in chunks:
        ids += chunk.output_ids
        reason = chunk.finish_reason
    assert reason is FinishReason.ABORT
    assert (said.rid, said.tokens) == (rid, len(PROMPT) + len(ids))
    return PROMPT + ids


async def test_a_call_moves_with_its_kv_and_only_the_last_token_is_computed(
    cells: tuple[SGLangEngine, SGLangEngine, SGLangEngine],
) -> None:
    source, target, _ = cells
    history = await interrupted(source, "moving")
    ticket = await source.export_kv("moving", lease=60)
    assert ticket is not None
    assert (ticket.tokens, ticket.weight_version) == (len(history) - 1, "v7")
    assert await target.import_kv(KvTicket.from_bytes(ticket.to_bytes())) == len(history) - 1
    await source.release_kv(ticket)
    answer = await complete(target, GenerateRequest("moved", history, SamplingParams(max_tokens=10, seed=1)))
    assert answer.cached_tokens == len(history) - 1
    assert (await target.stats()).prefill_tokens == 0
    scores = await source.score([*history, *answer.output_ids])
    assert answer.logprobs == pytest.approx(scores[-10:], abs=2e-5)


async def test_kv_of_other_weights_is_not_taken(cells: tuple[SGLangEngine, SGLangEngine, SGLangEngine]) -> None:
    source, _, newer = cells
    await interrupted(source, "old")
    ticket = await source.export_kv("old", lease=60)
    assert ticket is not None
    assert await newer.import_kv(ticket) == 0
    assert (await complete(newer, GenerateRequest("new", PROMPT, SamplingParams(max_tokens=2)))).cached_tokens == 0


async def test_kv_of_other_weights_is_taken_where_it_is_kept_across_versions(
    cells: tuple[SGLangEngine, SGLangEngine, SGLangEngine], other_folder: Path
) -> None:
    source, *_ = cells
    history = await interrupted(source, "old")
    ticket = await source.export_kv("old", lease=60)
    assert ticket is not None
    async with cell(other_folder, "v8", keep_kv=True) as keeper:
        assert await keeper.import_kv(ticket) == len(history) - 1
        request = GenerateRequest("new", history, SamplingParams(max_tokens=2))
        assert (await complete(keeper, request)).cached_tokens == len(history) - 1


async def test_what_was_not_interrupted_gives_no_ticket_and_what_was_released_cannot_be_read(
    cells: tuple[SGLangEngine, SGLangEngine, SGLangEngine],
) -> None:
    source, target, _ = cells
    assert await source.export_kv("nobody", lease=60) is None
    await interrupted(source, "x")
    ticket = await source.export_kv("x", lease=60)
    assert ticket is not None
    await source.release_kv(ticket)
    with pytest.raises(EngineFailed, match="registration|lost|key"):
        await target.import_kv(ticket)


async def test_a_request_is_interrupted_until_its_engine_resumes(cells: tuple[SGLangEngine, SGLangEngine, SGLangEngine]) -> None:
    source, *_ = cells
    await interrupted(source, "x")
    await source.resume()
    assert await source.export_kv("x", lease=60) is None

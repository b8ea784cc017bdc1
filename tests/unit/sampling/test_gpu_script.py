"""The checks of `tests/gpu/kv_sglang.py` hold where two native engines stand in the places of the two SGLang servers.

So what is not run for want of a GPU is SGLang there, not the script.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
import uvicorn

from gyre_engine.sampling.native import NativeEngine
from gyre_engine.sampling.sglang import SGLangEngine
from gyre_engine.transfer.tcp import TcpTransfer
from producers.cells.engine_kv import KvDesk
from producers.cells.engine_server import engine_app
from tests.gpu import kv_sglang, memory_sglang


@asynccontextmanager
async def cell(folder: Path) -> AsyncIterator[SGLangEngine]:
    engine, transfer = NativeEngine(folder, "0"), TcpTransfer(secret=b"shared by the cells of one run..")
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        app = engine_app(engine, kv=KvDesk(engine, transfer))
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


@pytest.mark.slow
async def test_the_script_for_a_gpu_finds_native_engines_in_order(tmp_path: Path) -> None:
    weights = kv_sglang.model(tmp_path / "model")
    async with AsyncExitStack() as stack:
        source, target = [await stack.enter_async_context(cell(weights)) for _ in range(2)]
        found = await kv_sglang.measured(source, target, weights)
    assert found["failed"] == []
    assert found["ok"]
    assert found["cached_tokens"] == found["tokens"] >= len(kv_sglang.PROMPT) + kv_sglang.INTERRUPT_AFTER - 1


@pytest.mark.slow
async def test_the_script_of_memory_holds_but_for_what_only_a_gpu_gives_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights, free = kv_sglang.model(tmp_path / "model"), iter([0, 1 << 30])
    monkeypatch.setattr(memory_sglang, "free_bytes", lambda: next(free))
    async with cell(weights) as engine:
        found = await memory_sglang.measured(engine, weights)
    assert (found["failed"], found["released_bytes"]) == ([], 1 << 30)

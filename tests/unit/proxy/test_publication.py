"""New weights for an engine that is busy: its open calls go on, and no agent sees anything of it."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import uvicorn
from starlette.types import Receive, Scope, Send

from gyre_engine.events.calls import Finish
from gyre_engine.sampling.scripted import Gate, Script, ScriptedEngine
from gyre_engine.sampling.sglang import SGLangEngine
from producers.cells.engine_server import engine_app
from tests.unit.proxy.conftest import MakeStack, started, until, user
from tests.unit.proxy.test_proxy_routes import sampled

CALLS = 16


@asynccontextmanager
async def sglang_that_aborts(engine: ScriptedEngine) -> AsyncIterator[str]:
    """SGLang's interface; an update of the weights aborts everything that runs, unless it is told not to."""
    app = engine_app(engine)

    async def aborting(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] != "/update_weights_from_disk":
            return await app(scope, receive, send)
        message = await receive()
        if orjson.loads(message["body"]).get("abort_all_requests", True):
            await engine.abort(None)
        bodies = iter([message])

        async def again() -> Any:
            return next(bodies, None) or await receive()

        return await app(scope, again, send)

    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        server = uvicorn.Server(uvicorn.Config(aborting, log_level="warning", lifespan="off", timeout_graceful_shutdown=1))
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            await serving


async def test_c28_a_publication_aborts_nothing_and_sixteen_agents_get_whole_answers(
    make_stack: MakeStack, tmp_path: Path
) -> None:
    """C28: 16 open calls at v7, 5 tokens each; v8 is published; all go on to their stop token."""
    gate, stack = Gate(), make_stack(cells=False)
    ids = (*stack.rendering.tokenizer.encode("abcdefgijkm"), stack.rendering.stop_ids[0])
    engine = ScriptedEngine(lambda _: Script(ids, piece=1), version="7", gate=gate)
    async with sglang_that_aborts(engine) as url:
        stack.service.desk.router.apply([replace(started("a", capacity=CALLS), engine_url=url)])
        names = [f"g{group}.{index}.0" for group in range(4) for index in range(4)]
        answers = [asyncio.ensure_future(stack.chat([user("q")], name)) for name in names]
        await until(lambda: len(engine.requests) == CALLS)
        await gate.release(5)
        await until(lambda: sampled(stack) == 5 * CALLS)
        publisher = SGLangEngine(url)
        await publisher.load_weights(tmp_path, "8")
        await publisher.close()
        await gate.open()
        bodies = [(await answer).json() for answer in answers]
    assert engine.aborted == []
    assert {(body["choices"][0]["finish_reason"], body["choices"][0]["message"]["content"]) for body in bodies} == {
        ("stop", "abcdefgijkm")
    }
    assert sorted(call.execution for call in stack.calls()) == sorted(names)
    for call in stack.calls():
        assert call.output_ids.tolist() == list(ids) and (call.finish, call.engine_calls) == (Finish.STOP, 1)
        assert [(span.start, span.version) for span in call.weight_spans] == [(0, 7), (5, 8)]

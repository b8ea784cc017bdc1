"""An engine behind SGLang's HTTP interface: the process that a cell starts where there is no SGLang.

reads     nothing of the log: it answers requests
writes    nothing of the log
promises  the protocol of `gyre_engine.sampling.sglang`, whatever engine stands behind; a client that goes away frees its slot at once,
          before the first token too; errors come as a status and JSON, before a stream opens where they are known by then.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, MutableMapping
from contextlib import aclosing, asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send
from tokenizers import Tokenizer

from gyre_engine.sampling.port import Chunk, Completion, GenerateRequest, InferenceEngine
from gyre_engine.sampling.script_file import read_script
from gyre_engine.sampling.scripted import ScriptedEngine
from gyre_engine.transfer.kinds import open_transfer
from producers.cells.engine_kv import KvDesk
from producers.cells.engine_wire import (
    Json,
    parse_generate,
    parse_rid,
    render_answer,
    render_error,
    render_scores,
    render_stats,
    wants_scores,
)

if TYPE_CHECKING:
    from gyre_engine.sampling.native import NativeEngine

logger = logging.getLogger(__name__)

Handler = Callable[[Json], Awaitable[Json]]

JSON = [(b"content-type", b"application/json")]
EVENTS = [(b"content-type", b"text/event-stream"), (b"cache-control", b"no-cache")]
SHUTDOWN_SECONDS = 2


def engine_app(engine: InferenceEngine, *, paused: bool = False, kv: KvDesk | None = None) -> Starlette:
    """The ASGI application around an engine, which it closes at its end.

    paused:  it serves only after a resume
    kv:      exports and imports KV, where the engine can
    """

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        if paused:
            await engine.pause(abort=True)
        yield
        await engine.close()

    async def generate(request: Request) -> Response:
        body = orjson.loads(await request.body())
        if wants_scores(body):
            return await _answer(lambda given: _score(engine, given), body)
        return _Generation(engine, parse_generate(body))

    def posted(handler: Handler) -> Callable[[Request], Awaitable[Response]]:
        async def endpoint(request: Request) -> Response:
            return await _answer(handler, orjson.loads(await request.body() or b"{}"))

        return endpoint

    routes = [Route("/generate", _guarded(generate), methods=["POST"])]
    moves = {"/kv_export": kv.export, "/kv_import": kv.take, "/kv_release": kv.release} if kv else {}
    for path, handler in {**_controls(engine), **moves}.items():
        routes.append(Route(path, _guarded(posted(handler)), methods=["POST", "GET"]))
    return Starlette(routes=routes, lifespan=lifespan)


def run_engine_server(
    folder: str,
    version: str,
    *,
    host: str,
    port: int,
    kv_capacity: int = 131072,
    max_batch: int = 64,
    max_context: int | None = None,
    paused: bool = False,
    kv_secret: bytes | None = None,
    transfer: str = "tcp",
    keep_kv: bool = False,
) -> None:
    """Serve the native engine until SIGTERM: the whole life of a forked process.

    paused:     it takes requests only after a resume, so that nobody samples with weights that it should not have
    kv_secret:  opens /kv_export, /kv_import and /kv_release, whose bytes go over a transfer of kind
                `transfer` that shares this secret with its peers
    keep_kv:    KV outlives the weights that computed it, whatever an update of weights says of it, and moves between versions
    """
    from gyre_engine.sampling.native import NativeEngine  # only this process pays for torch

    engine = NativeEngine(folder, version, kv_capacity=kv_capacity, max_batch=max_batch, max_context=max_context, keep_kv=keep_kv)
    kv = KvDesk(engine, open_transfer(transfer, host, secret=kv_secret), keep_kv=keep_kv) if kv_secret else None
    threading.Thread(target=end_with, args=(engine,), daemon=True).start()
    serve(engine, host, port, paused=paused, kv=kv)


def end_with(engine: NativeEngine) -> None:
    """Wait for the engine's thread. Where it broke nobody is served any more: the process ends, and its supervisor starts the next."""
    if (failure := engine.join()) is not None:
        logger.error("%s", failure)
        os.kill(os.getpid(), signal.SIGTERM)


def run_scripted_server(
    folder: str, script: str, version: str, *, host: str, port: int, kv_capacity: int, max_context: int
) -> None:
    """Serve an engine that plays a script through the tokenizer of a model's folder, until SIGTERM. Raises ScriptUnreadable."""
    play = read_script(script, Tokenizer.from_file(str(Path(folder, "tokenizer.json"))))
    engine = ScriptedEngine(play, version=version, kv_capacity=kv_capacity, max_context=max_context)
    serve(engine, host, port, paused=True)


def serve(engine: InferenceEngine, host: str, port: int, *, paused: bool = False, kv: KvDesk | None = None) -> None:
    """Serve any engine until SIGTERM."""
    uvicorn.run(
        engine_app(engine, paused=paused, kv=kv),
        host=host,
        port=port,
        log_level="warning",
        access_log=False,
        timeout_graceful_shutdown=SHUTDOWN_SECONDS,
    )


def _controls(engine: InferenceEngine) -> dict[str, Handler]:
    """What is not sampling."""
    return {**_interruptions(engine), **_holdings(engine)}


def _interruptions(engine: InferenceEngine) -> dict[str, Handler]:
    """Retract and in-place pauses are one here: what becomes of KV at new weights is the engine's `keep_kv`."""

    async def abort(body: Json) -> Json:
        await engine.abort(None if body.get("abort_all") else parse_rid(body))
        return {}

    async def pause(body: Json) -> Json:
        await engine.pause(abort=body.get("mode", "abort") == "abort")
        return {}

    async def drain(_: Json) -> Json:
        return {"requests": [{"rid": one.rid, "tokens": one.tokens} for one in await engine.drain()]}

    async def resume(_: Json) -> Json:
        await engine.resume()
        return {}

    return {"/abort_request": abort, "/pause_generation": pause, "/drain": drain, "/continue_generation": resume}


def _holdings(engine: InferenceEngine) -> dict[str, Handler]:
    """Its weights, its memory, and what it says of itself."""

    async def load(body: Json) -> Json:
        await engine.load_weights(str(body["model_path"]), str(body["weight_version"]))
        return {"success": True, "message": f"weights {body['weight_version']}"}

    async def release(_: Json) -> Json:
        await engine.release_memory()
        return {}

    async def reclaim(_: Json) -> Json:
        await engine.reclaim_memory()
        return {}

    async def info(_: Json) -> Json:
        return render_stats(await engine.stats())

    return {
        "/update_weights_from_disk": load,
        "/release_memory_occupation": release,
        "/resume_memory_occupation": reclaim,
        "/server_info": info,
        "/get_server_info": info,
        "/health": info,
    }


async def _score(engine: InferenceEngine, body: Json) -> Json:
    ids = list(body["input_ids"])
    return render_scores(ids, await engine.score(ids, reuse=int(body["logprob_start_len"])))


async def _answer(handler: Handler, body: Json) -> Response:
    return Response(orjson.dumps(await handler(body)), media_type="application/json")


def _guarded(endpoint: Callable[[Request], Awaitable[Response]]) -> Callable[[Request], Awaitable[Response]]:
    """Every error becomes a status and JSON that names it."""

    async def guarded(request: Request) -> Response:
        try:
            return await endpoint(request)
        except KeyError as error:
            status, body = render_error(ValueError(f"the body of {request.url.path} has no {error}: add it"))
        except Exception as error:
            status, body = render_error(error)
        return Response(orjson.dumps(body), status, media_type="application/json")

    return guarded


class _Generation(Response):
    """One call as an ASGI response that races the engine against the client's leaving."""

    def __init__(self, engine: InferenceEngine, request: GenerateRequest) -> None:
        self._engine, self._request = engine, request
        self._opened = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        answer = asyncio.ensure_future(self._respond(send))
        left = asyncio.ensure_future(_disconnected(receive))
        try:
            await asyncio.wait([answer, left], return_when=asyncio.FIRST_COMPLETED)
        finally:
            left.cancel()
            answer.cancel()  # closes the engine's iterator, which aborts the request
            with suppress(asyncio.CancelledError):
                await answer

    async def _respond(self, send: Send) -> None:
        try:
            await (self._stream(send) if self._request.streamed else self._whole(send))
        except Exception as error:
            status, body = render_error(error)
            if self._opened:
                await _send(send, b"data: " + orjson.dumps(body) + b"\n\n", more=False)
            else:
                await _open(send, status, JSON)
                await _send(send, orjson.dumps(body), more=False)

    async def _stream(self, send: Send) -> None:
        so_far = Completion()
        async with aclosing(self._chunks()) as chunks:
            async for chunk in chunks:
                so_far = so_far.plus(chunk)
                if not self._opened:
                    await _open(send, 200, EVENTS)
                    self._opened = True
                event = orjson.dumps(render_answer(self._request, chunk, so_far))
                await _send(send, b"data: " + event + b"\n\n", more=True)
        await _send(send, b"data: [DONE]\n\n", more=False)

    async def _whole(self, send: Send) -> None:
        so_far = Completion()
        async with aclosing(self._chunks()) as chunks:
            async for chunk in chunks:
                so_far = so_far.plus(chunk)
        await _open(send, 200, JSON)
        await _send(send, orjson.dumps(render_answer(self._request, so_far, so_far)), more=False)

    def _chunks(self) -> AsyncGenerator[Chunk]:
        return self._engine.generate(self._request)


async def _disconnected(receive: Receive) -> None:
    message: MutableMapping[str, Any] = {}
    while message.get("type") != "http.disconnect":
        message = await receive()


async def _open(send: Send, status: int, headers: list[tuple[bytes, bytes]]) -> None:
    await send({"type": "http.response.start", "status": status, "headers": headers})


async def _send(send: Send, body: bytes, *, more: bool) -> None:
    await send({"type": "http.response.body", "body": body, "more_body": more})

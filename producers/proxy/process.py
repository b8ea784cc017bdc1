"""The proxy as a process: reads back, takes over, follows, serves, and ends without losing a record.

reads     model-calls (once), cells, commands, executions
writes    model-calls, tool-events
promises  serves only what it owns; on SIGTERM or SIGINT open calls are aborted and recorded before it ends
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import signal
import socket
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import uvicorn
import uvloop

from gyre_engine.log.port import Log
from gyre_engine.sampling.sglang import SGLangEngine
from producers.proxy.app import application
from producers.proxy.call import Desk
from producers.proxy.feed import Feed
from producers.proxy.outbox import Outbox
from producers.proxy.rendering import Rendering, renderer_of
from producers.proxy.restore import rebuild, take_over
from producers.proxy.router import Connect, Router
from producers.proxy.service import Service
from producers.proxy.settings import ProxySettings
from producers.proxy.tokens import ChatTokenizer

log_ = logging.getLogger(__name__)

LAST_WORDS_S = 10.0
"""How long the end waits for records of aborted calls."""

Ready = Callable[[str], None]


def run(settings: ProxySettings, log: Log, *, connect: Connect | None = None, ready: Ready | None = None) -> None:
    """Serve until SIGTERM or SIGINT. `ready` is told the URL once calls are taken.

    Raises OSError where the port is taken or the secret cannot be read, TokenizerUnreadable, UnknownRenderer, KeyMissing,
    LogUnavailable or StillOwned.
    """
    secret = _secret(settings.secret_file)
    connect = connect or partial(SGLangEngine, experts=settings.experts)
    with _bound(settings) as listener:
        uvloop.run(_serve(settings, log, secret, listener, connect, ready))


async def _serve(
    settings: ProxySettings, log: Log, secret: bytes, listener: socket.socket, connect: Connect, ready: Ready | None
) -> None:
    service = _service(settings, log, connect)
    feed = Feed(log, service)
    await feed.start()
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)  # a long history is thousands of short-lived objects: no reason to search through everything
    server = _Server(
        uvicorn.Config(
            application(service, secret),
            loop="none",
            http="httptools",
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            timeout_keep_alive=300,
            timeout_graceful_shutdown=int(LAST_WORDS_S),
            backlog=1024,
        )
    )
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, _end, server, service)
    feed.broken.add_done_callback(lambda _: _end(server, service))
    if ready is not None:
        loop.call_soon(ready, f"http://{settings.host}:{listener.getsockname()[1]}")
    await server.serve(sockets=[listener])
    await service.settle(LAST_WORDS_S)
    await feed.stop()
    await service.models.close()
    if feed.broken.done():
        feed.broken.result()


def _service(settings: ProxySettings, log: Log, connect: Connect) -> Service:
    name = renderer_of(settings.model_folder) if settings.renderer == "auto" else settings.renderer
    rendering = Rendering(ChatTokenizer.load(settings.model_folder), name, settings.renderer_options)
    service = Service(settings, Desk(Router(connect), Outbox(log), rendering), connect=connect)
    past = take_over(log, settings.name)
    service.closed.update(past.closed)
    service.executions.update({name: rebuild(name, past.open, rendering) for name in past.open.epochs})
    if service.executions:
        log_.info("took over %d open executions", len(service.executions))
    return service


def _end(server: _Server, service: Service) -> None:
    server.should_exit = True
    service.cancel_all()


class _Server(uvicorn.Server):
    """Leaves the signals to the process."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _secret(file: Path) -> bytes:
    secret = file.read_bytes().strip()
    if len(secret) < 16:
        raise ValueError(f"{file} holds {len(secret)} bytes: the stack's secret needs at least 16; let `gyre up` make it")
    return secret


@contextlib.contextmanager
def _bound(settings: ProxySettings) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((settings.host, settings.port))
        except OSError as error:
            text = f"{settings.host}:{settings.port} cannot be bound ({error.strerror}): set proxy.port to a free one, or 0"
            raise OSError(error.errno, text) from error
        yield listener

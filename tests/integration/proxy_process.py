"""A proxy and an engine server as processes of their own, for tests that kill them."""

from __future__ import annotations

import multiprocessing
import os
import signal
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gyre_engine.log.kafka import KafkaLog
from gyre_engine.log.settings import KafkaSettings
from producers.proxy.settings import ProxySettings


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def serve_proxy(settings: ProxySettings, kafka: KafkaSettings, run_name: str, ready: Any) -> None:
    from producers.proxy.process import run

    log = KafkaLog(kafka, run_name)
    run(settings, log, ready=ready.send)
    log.close()


def serve_engine(ids: tuple[tuple[int, ...], ...], port: int, version: str) -> None:
    """Plays the outputs in turn, over and over."""
    from itertools import cycle

    from gyre_engine.sampling.scripted import Script, ScriptedEngine
    from producers.cells.engine_server import serve

    serve(ScriptedEngine(Script(output) for output in cycle(ids)), "127.0.0.1", port)


class Child:
    """A child process that is told from others by its id alone."""

    def __init__(self, target: Callable[..., None], *arguments: Any) -> None:
        self._context = multiprocessing.get_context("spawn")
        self.process = self._context.Process(target=target, args=arguments, daemon=True)
        self.process.start()

    def kill(self) -> None:
        os.kill(self.process.pid or 0, signal.SIGKILL)
        self.process.join(20)

    def end(self) -> int | None:
        self.process.terminate()
        self.process.join(20)
        return self.process.exitcode


class ProxyChild(Child):
    """A proxy; `url` once it serves."""

    def __init__(self, folder: Path, kafka: KafkaSettings, run_name: str, **values: Any) -> None:
        hears, says = multiprocessing.get_context("spawn").Pipe(duplex=False)
        settings = ProxySettings(folder, folder / "secret", **values)
        super().__init__(serve_proxy, settings, kafka, run_name, says)
        if not hears.poll(90):
            raise TimeoutError("the proxy did not serve within 90 s")
        self.url: str = hears.recv()

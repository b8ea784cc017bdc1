"""Starts the embedded server in this process, tells when it answers, and stops it without losing what it acknowledged."""

from __future__ import annotations

import socket
import threading
import time
from types import TracebackType

import uvicorn

from consumers.analytics.embedded.app import application
from consumers.analytics.embedded.engine import Engine, EngineSettings
from consumers.analytics.embedded.request import Users

START_LIMIT = 30.0
"""Seconds in which the server must answer."""


class Embedded:
    """ClickHouse on one folder, served on `host:port` from a thread of this process. A context manager."""

    def __init__(self, settings: EngineSettings, users: Users, *, host: str = "127.0.0.1", port: int = 0) -> None:
        self._socket = _listen(host, port)
        try:
            self.engine = Engine(settings)
        except BaseException:
            self._socket.close()
            raise
        self.host, self.port = self._socket.getsockname()[:2]
        self._server = uvicorn.Server(_server_config(self.engine, users))
        self._thread = threading.Thread(target=self._serve, name="clickhouse-http", daemon=True)
        self._thread.start()
        self._wait_until_up()

    @property
    def url(self) -> str:
        """Where clients connect, without user and password."""
        return f"http://{self.host}:{self.port}"

    def _serve(self) -> None:
        self._server.run(sockets=[self._socket])

    def _wait_until_up(self) -> None:
        end = time.monotonic() + START_LIMIT
        while not self._server.started:
            if time.monotonic() > end or not self._thread.is_alive():
                raise RuntimeError(f"the embedded ClickHouse did not answer at {self.url} within {START_LIMIT:.0f} s")
            time.sleep(0.005)

    def close(self) -> None:
        """Finish what runs, then give the folder back."""
        self._server.should_exit = True
        self._thread.join(timeout=15)
        self.engine.close()

    def __enter__(self) -> Embedded:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def _server_config(engine: Engine, users: Users) -> uvicorn.Config:
    return uvicorn.Config(
        application(engine, users),
        log_level="warning",
        access_log=False,
        http="httptools",
        lifespan="off",
        timeout_graceful_shutdown=10,
        timeout_keep_alive=60,
    )


def _listen(host: str, port: int) -> socket.socket:
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise RuntimeError(
            f"ClickHouse cannot listen on {host}:{port} ({error.strerror}): "
            "stop what listens there, or start again: where no port is given, a free one is taken"
        ) from error
    listener.listen(128)
    return listener

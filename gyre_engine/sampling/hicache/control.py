"""A socket in a folder of the cell's, at which a rank of SGLang's is asked: one line of JSON, one line of JSON back.

promises  nobody but its owner connects (mode 0600); an answer is `{"ok": ...}` or `{"error": text}`; a rank that is away costs no more
          than the limit

Only Linux: a socket is reached over its folder's descriptor, because the names of sockets end after 107 bytes and those of folders
do not.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import socketserver
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

Json = dict[str, Any]

PREFIX = "kv-"
LONGEST_LINE = 1 << 28
"""Token ids of the longest context are some megabytes as JSON."""

logger = logging.getLogger(__name__)


class ControlLost(RuntimeError):
    """A rank that did not answer; the text names it."""


class Control:
    """Answers asks, each in a thread of its own, until `close`."""

    def __init__(self, folder: Path, rank: str, answer: Callable[[Json], Json]) -> None:
        self._folder, self._name = folder, f"{PREFIX}{rank}"
        folder.mkdir(parents=True, exist_ok=True)
        with suppress(FileNotFoundError):
            (folder / self._name).unlink()
        with _within(folder) as place:
            before = os.umask(0o177)
            try:
                self._server = _Server(f"{place}/{self._name}", _handler(answer))
            finally:
                os.umask(before)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), name=self._name, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Answer no more."""
        self._server.shutdown()
        self._server.server_close()
        with suppress(FileNotFoundError):
            (self._folder / self._name).unlink()


def ranks(folder: Path) -> list[str]:
    """Which ranks listen in a folder."""
    return sorted(path.name.removeprefix(PREFIX) for path in folder.glob(f"{PREFIX}*"))


def forget(folder: Path) -> None:
    """Remove the sockets of an earlier life."""
    for rank in ranks(folder):
        (folder / f"{PREFIX}{rank}").unlink()


async def ask(folder: Path, rank: str, body: Json, seconds: float) -> Json:
    """A rank's answer. Raises ControlLost where it is away or late, ValueError with what it said where it refused."""
    try:
        async with asyncio.timeout(seconds):
            answer = await _exchange(folder, f"{PREFIX}{rank}", body)
    except (OSError, TimeoutError, ValueError) as error:
        raise ControlLost(f"rank {rank} of SGLang does not answer {body.get('do')}: {error!r}") from error
    if "error" in answer:
        raise ValueError(f"rank {rank}: {answer['error']}")
    found: Json = answer["ok"]
    return found


async def _exchange(folder: Path, name: str, body: Json) -> Json:
    with _within(folder) as place:
        reader, writer = await asyncio.open_unix_connection(f"{place}/{name}", limit=LONGEST_LINE)
    try:
        writer.write(json.dumps(body).encode() + b"\n")
        await writer.drain()
        answer: Json = json.loads(await reader.readline())
        return answer
    finally:
        writer.close()


@contextmanager
def _within(folder: Path) -> Iterator[str]:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)


class _Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True


def _handler(answer: Callable[[Json], Json]) -> type[socketserver.StreamRequestHandler]:
    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            try:
                said: Json = {"ok": answer(json.loads(self.rfile.readline(LONGEST_LINE)))}
            except Exception as error:  # whatever it is, it is the asker's to know and must not end SGLang
                logger.warning("an ask about KV failed: %r", error)
                said = {"error": f"{type(error).__name__}: {error}"}
            with suppress(OSError):
                self.wfile.write(json.dumps(said).encode() + b"\n")

    return Handler

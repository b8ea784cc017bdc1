"""The way out of a sandbox while the endpoint is away: a call waits within a limit, and not for a client that has gone."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from gyre_engine.sandbox.bridge import open_bridge


class Heard(logging.Handler):
    """Keeps what the bridge says; `said` is set at the first word."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []
        self.said = asyncio.Event()

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())
        self.said.set()


@pytest.fixture
async def heard() -> AsyncIterator[Heard]:
    handler, logger = Heard(), logging.getLogger("gyre_engine.sandbox.bridge")
    logger.addHandler(handler)
    yield handler
    logger.removeHandler(handler)


@pytest.fixture
def bound() -> Iterator[socket.socket]:
    """A port that is taken and where nobody listens: connections are refused, as by a proxy that is yet to come up."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield taken


def port_of(taken: socket.socket) -> int:
    return int(taken.getsockname()[1])


async def shout(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write((await reader.readline()).upper())
    writer.close()


async def test_what_was_called_before_the_endpoint_was_there_is_answered_when_it_is(
    tmp_path: Path, bound: socket.socket, heard: Heard
) -> None:
    bridge = await open_bridge(tmp_path / "b.sock", "127.0.0.1", port_of(bound), 20.0)
    calls = [await asyncio.open_unix_connection(bridge.path) for _ in range(2)]
    for _, writer in calls:
        writer.write(b"hello\n")
    async with asyncio.timeout(20):
        await heard.said.wait()
        server = await asyncio.start_server(shout, sock=bound)
        answers = [await reader.read() for reader, _ in calls]
    assert answers == [b"HELLO\n", b"HELLO\n"]
    assert [text for text in heard.texts if "nobody listens" in text] == [
        f"nobody listens at the model endpoint, 127.0.0.1:{port_of(bound)}: calls of agents wait, each for 20 s at most"
    ]
    for _, writer in calls:
        writer.close()
    await bridge.close()
    server.close()


async def test_an_endpoint_that_stays_away_beyond_the_limit_cuts_the_call_off(
    tmp_path: Path, bound: socket.socket, heard: Heard
) -> None:
    bridge = await open_bridge(tmp_path / "b.sock", "127.0.0.1", port_of(bound), 0.15)
    reader, writer = await asyncio.open_unix_connection(bridge.path)
    async with asyncio.timeout(20):
        assert await reader.read() == b""
    assert f"127.0.0.1:{port_of(bound)} for 0.15 s" in heard.texts[-1]
    writer.close()
    await bridge.close()


async def test_a_client_that_has_gone_is_waited_for_no_longer(tmp_path: Path, bound: socket.socket, heard: Heard) -> None:
    bridge = await open_bridge(tmp_path / "b.sock", "127.0.0.1", port_of(bound), 3600.0)
    before = asyncio.all_tasks()
    _, writer = await asyncio.open_unix_connection(bridge.path)
    async with asyncio.timeout(20):
        await heard.said.wait()
        trying = asyncio.all_tasks() - before
        writer.close()
        await asyncio.wait(trying)
    assert [task.cancelled() for task in trying] == [True]
    await bridge.close()

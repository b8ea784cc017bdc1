"""A chat endpoint with the proxy's internal routes, scripted by the test, and task folders: for the tests of runner and scoring."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gyre_engine.keys import execution_of, is_internal

SECRET = b"a secret of the tests"

Answer = Callable[[str, dict[str, Any]], tuple[int, dict[str, Any]]]
"""(execution, request body) -> (status, answer body)"""


def says(text: str) -> dict[str, Any]:
    """A chat completion without tool calls."""
    return _completion({"role": "assistant", "content": text})


def calls(name: str, arguments: dict[str, Any] | str, id: str = "call-1") -> dict[str, Any]:
    """A chat completion with one tool call."""
    text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    function = {"name": name, "arguments": text}
    return _completion({"role": "assistant", "content": "", "tool_calls": [{"id": id, "type": "function", "function": function}]})


def _completion(message: dict[str, Any]) -> dict[str, Any]:
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    return {
        "id": "c",
        "object": "chat.completion",
        "created": 0,
        "model": "policy",
        "choices": [choice],
        "usage": {"completion_tokens": 7},
    }


class FakeProxy:
    """Serves on a free port of loopback between `start` and `stop`. `held_us`: what it claims to have held an execution up."""

    def __init__(self, answer: Answer) -> None:
        self.answer, self.requests, self.closed, self.held_us = answer, list[tuple[str, dict[str, Any]]](), list[str](), 0
        self.port, self.host = 0, "127.0.0.1"
        self._clients = set[asyncio.StreamWriter]()

    async def start(self) -> str:
        self._server = await asyncio.start_server(self._serve, self.host, self.port)
        self.port = self._server.sockets[0].getsockname()[1]
        return f"http://127.0.0.1:{self.port}"

    async def stop(self) -> None:
        self._server.close()

    def die(self) -> None:
        """As by kill -9: nobody listens, and who was connected is cut off."""
        self._server.close()
        for client in self._clients:
            client.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._clients.add(writer)
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                lines = head.decode().split("\r\n")
                headers = {k.lower(): v.strip() for k, _, v in (line.partition(":") for line in lines[1:])}
                body = await reader.readexactly(int(headers.get("content-length", 0)))
                status, answer = await self._route(lines[0].split()[1], headers["authorization"].removeprefix("Bearer "), body)
                data = json.dumps(answer).encode()
                writer.write(f"HTTP/1.1 {status} x\r\ncontent-length: {len(data)}\r\n\r\n".encode() + data)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass  # the client, or the test, is done
        finally:
            self._clients.discard(writer)
            writer.close()

    async def _route(self, path: str, key: str, body: bytes) -> tuple[int, dict[str, Any]]:
        if path.startswith("/internal/executions/"):
            assert is_internal(SECRET, key)
            execution = path.split("/")[3]
            if path.endswith("/close"):
                self.closed.append(execution)
            return 200, {"held_us": self.held_us, "calls": sum(name == execution for name, _ in self.requests)}
        execution = execution_of(SECRET, key)
        if execution is None:
            return 401, {"error": {"message": "unknown key"}}
        request = json.loads(body)
        self.requests.append((execution, request))
        status, answer = self.answer(execution, request)
        if answer.get("wait_s"):
            await asyncio.sleep(answer["wait_s"])
        return status, answer


TEST_SH = """#!/bin/sh
if [ "$(cat answer.txt 2>/dev/null)" = 42 ]; then echo 1 >/logs/verifier/reward.txt; else echo 0 >/logs/verifier/reward.txt; fi
"""


def write_task(
    folder: Path, *, test: str = TEST_SH, dockerfile: str = "FROM x\nWORKDIR /app\nCOPY seed.txt /app/\n", toml: str = ""
) -> Path:
    """A task whose answer is 42 in answer.txt."""
    for part in ("environment", "tests"):
        (folder / part).mkdir(parents=True)
    (folder / "task.toml").write_text(toml or "[agent]\ntimeout_sec = 60.0\n[verifier]\ntimeout_sec = 20.0\n")
    (folder / "instruction.md").write_text(f"Write 42 to answer.txt. ({folder.name})\n")
    (folder / "environment" / "Dockerfile").write_text(dockerfile)
    (folder / "environment" / "seed.txt").write_text("seed\n")
    (folder / "tests" / "test.sh").write_text(test)
    return folder

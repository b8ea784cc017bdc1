"""A model that answers at once with whatever a model may write: good and broken tool calls, thinking without an end, half characters.

What it answers is drawn by the execution and its prompt alone, so that a seed gives the same answers again.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import AsyncGenerator
from pathlib import Path

from gyre_engine.sampling.port import Chunk, FinishReason, GenerateRequest
from producers.proxy.tokens import ChatTokenizer


def _call(inside: str) -> str:
    return f"<tool_call>\n{inside}\n</tool_call>"


_GOOD = '{"name": "bash", "arguments": {"command": "make test"}}'
ANSWERS = (
    _call(_GOOD),
    _call(_GOOD),
    _call('{"name": "exec_command", "arguments": {"cmd": "ls", "workdir": "/"}}') + "\n" + _call(_GOOD),
    "Let me look.\n\n" + _call('{"name": "Bash", "arguments": {"command": "cd /x && ls  "}}'),
    _call('{"name": "apply_patch", "arguments": {"input": "*** Begin"}}'),
    _call('{"name": "agents__spawn", "arguments": {"message": "hi"}}'),
    "<think>\nhm\n</think>\n\nDone.",
    "<think>\nhm\n</think>\n\n" + _call(_GOOD),
    "All done. \U0001f600",
    "",
    "  \n ",
    "<think>\nnever ends",
    "</think></think><think>",
    _call('{"name": "bash", "arguments": {"command": '),
    _call('{"name": 5, "arguments": {"command": "x"}}'),
    _call('{"name": ["bash"], "arguments": {}}'),
    _call('{"name": {"a": 1}, "arguments": {}}'),
    _call('{"name": null, "arguments": null}'),
    _call('{"name": "", "arguments": ""}'),
    _call('{"name": "bash", "arguments": "text"}'),
    _call('{"name": "bash", "arguments": [1, 2]}'),
    _call('{"name": "bash", "arguments": {"a": NaN, "b": 1e999}}'),
    _call('{"name": "bash", "arguments": {"a": NaN, "b": "\\ud83d"}}'),
    _call('{"name": "b\\ud83d", "arguments": {"a": "\\ud83d"}}'),
    _call('{"name": "bash", "arguments": {"a": "\\u0000", "n": 123456789012345678901234567890}}'),
    _call('{"name": "bash", "arguments": ' + '{"a":' * 600 + "1" + "}" * 600 + "}"),
    _call('{"name": "bash", "arguments": ' + "[" * 2500 + "]" * 2500 + "}"),
    _call('{"name": "bash", "arguments": {"a": ' + "9" * 5000 + "}}"),
    _call("no json"),
    _call(""),
    "<tool_call>",
    "<tool_call>" * 3,
    "</tool_call> after",
    "<|im_start|>assistant\nhi",
    "\ufffd\u0000\u202e",
    "word " * 300,
)


class FuzzEngine:
    """Some answers come in pieces with a pause between, so that clients can go in the middle of them."""

    def __init__(self, tokenizer: ChatTokenizer) -> None:
        end = tokenizer.convert_tokens_to_ids("<|im_end|>")
        whole = [(*tokenizer.encode(text), end) for text in ANSWERS]
        half = tokenizer.encode("\U0001f600")[:1]
        self._open: set[str] = set()
        self._aborted: set[str] = set()
        self._answers = [*whole, (*half, end), (end,)]

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[Chunk]:
        seen = f"{request.rid.rpartition('-')[0]} {len(request.input_ids)} {list(request.input_ids[-40:])}"
        drawn = zlib.crc32(seen.encode())
        ids = self._answers[drawn % len(self._answers)]
        finish = FinishReason.STOP if len(ids) <= request.params.max_tokens else FinishReason.LENGTH
        ids = ids[: request.params.max_tokens]
        if drawn // 64 % 4 == 0 and len(ids) > 4:
            self._open.add(request.rid)
            step = len(ids) // 4
            for at in range(0, 3 * step, step):
                yield Chunk(ids[at : at + step], (-0.5,) * step, "0", None)
                await asyncio.sleep(0.15)
                if request.rid in self._aborted:
                    self._open.discard(request.rid)
                    yield Chunk((), (), "0", FinishReason.ABORT)
                    return
            ids = ids[3 * step :]
            self._open.discard(request.rid)
        yield Chunk(ids, (-0.5,) * len(ids), "0", finish)

    async def abort(self, rid: str | None) -> None:
        """Its answer ends at the next piece; one whose pieces are all out is not held up."""
        self._aborted = {rid for rid in (*self._aborted, rid) if rid in self._open}

    async def close(self) -> None:
        """Nothing is held."""


def serve_engine(folder: Path, port: int) -> None:
    """Serve until SIGTERM."""
    from producers.cells.engine_server import serve

    serve(FuzzEngine(ChatTokenizer.load(folder)), "127.0.0.1", port)  # type: ignore[arg-type]

"""One streamed answer in the Messages dialect.

Blocks follow each other: a delta goes to the open block of its kind, or closes what is open and opens one. Tool calls come in
`closing` alone. Each event has its `event:` line, without which official clients skip it.
"""

from __future__ import annotations

from typing import Any

import orjson

from gyre_engine.trees.conversation import ToolCall
from producers.proxy.dialects.messages.output import SIGNATURE, ending, error_body, tool_use, usage, written
from producers.proxy.exchange import Answer, Ask, Channel, Piece, ProxyError, Usage


class MessagesStream:
    """Events of one answer."""

    def __init__(self, ask: Ask, call: str) -> None:
        self._ask = ask
        self._call = call
        self._open: Channel | None = None
        self._index = -1

    def opening(self) -> bytes:
        """The message without content, and a sign of life. What came from a cache is told at the end."""
        message: dict[str, Any] = {
            "id": f"msg_{self._call}",
            "type": "message",
            "role": "assistant",
            "model": self._ask.model,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": usage(Usage(self._ask.prompt_tokens, 0, 0)),
        }
        return _event("message_start", message=message) + self.keep_alive()

    def delta(self, piece: Piece) -> bytes:
        """A delta in the block of its kind."""
        if not piece.text:
            return b""
        before = b"" if piece.channel is self._open else self._stop() + self._begin(piece.channel)
        return before + self._delta(_piece(piece))

    def keep_alive(self) -> bytes:
        """A ping."""
        return _event("ping")

    def closing(self, answer: Answer) -> bytes:
        """The end of the open block, tool calls, the stop reason, the usage, the end."""
        return b"".join(
            [
                self._stop(),
                *[self._call_block(call) for call in answer.calls],
                _event("message_delta", delta=ending(answer), usage=usage(answer.usage)),
                _event("message_stop"),
            ]
        )

    def broken(self, problem: ProxyError) -> bytes:
        """An error, and the end: there are clients that wait for it for ever."""
        return b"event: error\ndata: " + error_body(problem) + b"\n\n" + _event("message_stop")

    def _begin(self, channel: Channel) -> bytes:
        self._open = channel
        if channel is Channel.TEXT:
            return self._start({"type": "text", "text": ""})
        return self._start({"type": "thinking", "thinking": "", "signature": ""})

    def _stop(self) -> bytes:
        if self._open is None:
            return b""
        signed = self._delta({"type": "signature_delta", "signature": SIGNATURE}) if self._open is Channel.REASONING else b""
        self._open = None
        return signed + _event("content_block_stop", index=self._index)

    def _call_block(self, call: ToolCall) -> bytes:
        start = self._start(tool_use(call, {}))
        delta = self._delta({"type": "input_json_delta", "partial_json": written(call)})
        return start + delta + _event("content_block_stop", index=self._index)

    def _start(self, block: dict[str, Any]) -> bytes:
        self._index += 1
        return _event("content_block_start", index=self._index, content_block=block)

    def _delta(self, delta: dict[str, Any]) -> bytes:
        return _event("content_block_delta", index=self._index, delta=delta)


def _piece(piece: Piece) -> dict[str, Any]:
    if piece.channel is Channel.TEXT:
        return {"type": "text_delta", "text": piece.text}
    return {"type": "thinking_delta", "thinking": piece.text}


def _event(kind: str, **fields: Any) -> bytes:
    return b"event: " + kind.encode() + b"\ndata: " + orjson.dumps({"type": kind, **fields}) + b"\n\n"

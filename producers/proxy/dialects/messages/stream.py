"""Anthropic Messages, outwards: blocks, usage and errors, and the events of a streamed answer.

Blocks follow each other: a delta goes to the open block of its kind, or closes what is open and opens one. Tool calls come in
`closing` alone. Each event has its `event:` line, without which official clients skip it.
"""

from __future__ import annotations

import json
import re
from typing import Any

import orjson

from gyre_engine.events.calls import Finish
from gyre_engine.trees.conversation import ToolCall
from producers.proxy.exchange import Answer, Ask, Channel, Piece, ProxyError, Usage

SIGNATURE = "gyre"
"""Stands where the API signs its thinking; some clients drop thinking without one."""
UNPARSED = "__unparsedToolInput"

_ESCAPE = re.compile(r"\\(?:u[dD][89abAB]..\\u[dD][c-fC-F]..|(u[dD][89a-fA-F]..)|.)", re.DOTALL)
"""An escape in JSON; its group holds where it spells half a character."""

_STOP = {
    Finish.STOP: "end_turn",
    Finish.TOOL_CALLS: "tool_use",
    Finish.LENGTH: "max_tokens",
    Finish.CANCELLED: "end_turn",
}
_KINDS = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    529: "overloaded_error",
}


def content(found: Answer) -> list[dict[str, Any]]:
    """The blocks of an answer: thinking, text, tool calls."""
    blocks: list[dict[str, Any]] = []
    if found.reasoning:
        blocks.append({"type": "thinking", "thinking": found.reasoning, "signature": SIGNATURE})
    if found.text:
        blocks.append({"type": "text", "text": found.text})
    return blocks + [_tool_use(call, orjson.Fragment(written(call))) for call in found.calls]


def written(call: ToolCall) -> str:
    """A tool call's input as JSON of an object: as it was sampled, or wrapped where that is none.

    An escape of half a character becomes U+FFFD: it would make the whole body unreadable to strict clients.
    """
    if not _is_object(call.arguments):
        return json.dumps({UNPARSED: {"raw": call.arguments}}, ensure_ascii=False)
    return _ESCAPE.sub(lambda found: "\ufffd" if found[1] else found[0], call.arguments)


def ending(found: Answer) -> dict[str, Any]:
    """Why an answer ends."""
    return {"stop_reason": _STOP[found.finish], "stop_sequence": None}


def usage(found: Usage) -> dict[str, int]:
    """Tokens as the API counts them: what came from a cache is not among `input_tokens`."""
    return {
        "input_tokens": found.prompt - found.cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": found.cached,
        "output_tokens": found.output,
    }


def status(problem: ProxyError) -> int:
    """The status that these clients know: 529 where asking later helps."""
    return 529 if problem.status == 503 else problem.status


def error_body(problem: ProxyError) -> bytes:
    """An error's body. Clients look for `prompt is too long: N tokens > M maximum` to shorten a history."""
    code = status(problem)
    kind = _KINDS.get(code, "invalid_request_error" if code < 500 else "api_error")
    message = problem.message
    if problem.tokens is not None:
        message = f"prompt is too long: {problem.tokens[0]} tokens > {problem.tokens[1]} maximum"
    return orjson.dumps({"type": "error", "error": {"type": kind, "message": message}})


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
        start = self._start(_tool_use(call, {}))
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


def _tool_use(call: ToolCall, given: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": call.id, "name": call.name, "input": given}


def _is_object(arguments: str) -> bool:
    """Whether a text is JSON of an object for every client: Python's NaN and Infinity are not."""
    try:
        return isinstance(json.loads(arguments, parse_constant=_refuse), dict)
    except (ValueError, RecursionError):
        return False


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


def _event(kind: str, **fields: Any) -> bytes:
    return b"event: " + kind.encode() + b"\ndata: " + orjson.dumps({"type": kind, **fields}) + b"\n\n"

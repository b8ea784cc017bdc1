"""Answers in the words of the Messages dialect: blocks, usage, and errors.

The API promises that a tool call's `input` is an object. Where the model wrote something else (broken JSON, a bare string) the client
gets `{"__unparsedToolInput": {"raw": "<the sampled text>"}}`, whole or streamed: Claude Code itself makes this of such
arguments, tells the model so, and no official client fails on it. What is recorded, trained and put back into the next prompt
is the sampled text.
"""

from __future__ import annotations

import json
import re
from typing import Any

import orjson

from gyre_engine.events.calls import Finish
from gyre_engine.trees.conversation import ToolCall
from producers.proxy.exchange import Answer, ProxyError, Usage

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
    408: "timeout_error",
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
    return blocks + [tool_use(call, orjson.Fragment(written(call))) for call in found.calls]


def written(call: ToolCall) -> str:
    """A tool call's input as JSON of an object: as it was sampled, or wrapped where that is none.

    An escape of half a character becomes U+FFFD: it would make the whole body unreadable to strict clients.
    """
    if not _is_object(call.arguments):
        return json.dumps({UNPARSED: {"raw": call.arguments}}, ensure_ascii=False)
    return _ESCAPE.sub(lambda found: "\ufffd" if found[1] else found[0], call.arguments)


def tool_use(call: ToolCall, given: Any) -> dict[str, Any]:
    """A tool call's block; `given`: its input, or `{}` where that follows."""
    return {"type": "tool_use", "id": call.id, "name": call.name, "input": given}


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


def _is_object(arguments: str) -> bool:
    """Whether a text is JSON of an object for every client: Python's NaN and Infinity are not."""
    try:
        return isinstance(json.loads(arguments, parse_constant=_refuse), dict)
    except (ValueError, RecursionError):
        return False


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")

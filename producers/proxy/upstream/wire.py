"""Chat Completions as an upstream speaks it: a request of any dialect in, an answer out. Nothing is streamed.

What is asked: messages, tools and the client's limit of tokens. The run's sampling is the policy's own and stays here; an upstream
samples as it does. Reasoning of earlier turns is not sent: not all servers take it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import orjson

from gyre_engine.events.calls import Finish
from gyre_engine.trees.conversation import Author, Message
from producers.proxy.exchange import Ask, Usage
from producers.proxy.rendering import Parsed, WrittenCall

_FINISH = {"length": Finish.LENGTH}
_LARGEST = 1 << 31
"""Counts of tokens beyond this are no counts."""


class Unreadable(ValueError):
    """The body is no answer of Chat Completions; the text says what is missing."""


@dataclass(frozen=True, slots=True)
class Said:
    """What an upstream answered, and the tokens as it counts them (0 where it does not say)."""

    parsed: Parsed
    finish: Finish
    usage: Usage


def request(ask: Ask, model: str) -> bytes:
    """The body that asks the upstream for `model`."""
    fields: dict[str, Any] = {"model": model, "messages": [_message(message) for message in ask.messages], "stream": False}
    if ask.tools:
        fields["tools"] = ask.tools
    if ask.max_tokens is not None:
        fields["max_tokens"] = ask.max_tokens
    return orjson.dumps(fields)


def _message(message: Message) -> dict[str, Any]:
    match message.author:
        case Author.TOOL:
            return {"role": "tool", "tool_call_id": message.answers, "content": message.text}
        case Author.ASSISTANT if message.calls:
            calls = [
                {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
                for call in message.calls
            ]
            return {"role": "assistant", "content": message.text or None, "tool_calls": calls}
        case _:
            return {"role": message.author.value, "content": message.text}


def read(body: bytes) -> Said:
    """The answer in `body`. Raises Unreadable."""
    try:
        fields = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise Unreadable(f"it is no JSON: {error}") from error
    choice = _first(_dict(fields).get("choices"))
    message = choice.get("message")
    if not isinstance(message, dict):
        raise Unreadable("it has no choices[0].message")
    reasoning = _text(message.get("reasoning_content") or message.get("reasoning"))
    calls = tuple(_asked(call) for call in _list(message.get("tool_calls")))
    finish = _FINISH.get(str(choice.get("finish_reason")), Finish.TOOL_CALLS if calls else Finish.STOP)
    return Said(Parsed(_text(message.get("content")), reasoning, calls), finish, _usage(_dict(_dict(fields).get("usage"))))


def _asked(call: Any) -> WrittenCall:
    function = _dict(_dict(call).get("function"))
    name, arguments = function.get("name"), function.get("arguments")
    if not isinstance(name, str) or not name:
        raise Unreadable("a tool call in it has no function with a name")
    return WrittenCall(name, arguments if isinstance(arguments, str) else orjson.dumps(arguments or {}).decode())


def _usage(usage: dict[str, Any]) -> Usage:
    prompt, output = _count(usage.get("prompt_tokens")), _count(usage.get("completion_tokens"))
    cached = _count(_dict(usage.get("prompt_tokens_details")).get("cached_tokens"))
    reasoning = _count(_dict(usage.get("completion_tokens_details")).get("reasoning_tokens"))
    return Usage(prompt, output, min(cached, prompt), min(reasoning, output))


def _text(value: Any) -> str:
    """A text, or the texts of a list of parts."""
    if isinstance(value, list):
        return "".join([_text(_dict(part).get("text")) for part in value])
    return value if isinstance(value, str) else ""


def _count(value: Any) -> int:
    return value if type(value) is int and 0 <= value < _LARGEST else 0


def _first(value: Any) -> dict[str, Any]:
    if not _list(value):
        raise Unreadable("it has no choices")
    return _dict(value[0])


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}

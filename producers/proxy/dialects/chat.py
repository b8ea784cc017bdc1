"""OpenAI Chat Completions: bodies in, answers, chunks and errors out.

`stop` strings are ignored (noted in the record): a turn ends at the model's own stop tokens, so that what is recorded
is what was sampled. Sampling parameters belong to the run. Unknown fields are ignored. A lone surrogate in a string
becomes U+FFFD.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import orjson

from gyre_engine.events.calls import Finish
from gyre_engine.trees.conversation import Author, Message, ToolCall, begin, links
from producers.proxy.exchange import Answer, Ask, Channel, History, Piece, ProxyError, Usage, malformed

DIALECT = "chat"

_AUTHORS = {
    "system": Author.SYSTEM,
    "developer": Author.SYSTEM,
    "user": Author.USER,
    "assistant": Author.ASSISTANT,
    "tool": Author.TOOL,
    "function": Author.TOOL,
}
_IGNORED = ("stop", "logprobs", "response_format", "tool_choice", "temperature", "top_p", "seed", "logit_bias")
_FINISH = {Finish.STOP: "stop", Finish.TOOL_CALLS: "tool_calls", Finish.LENGTH: "length", Finish.CANCELLED: "stop"}
_HEAD = {"object": "chat.completion.chunk"}


def parse(body: bytes, last: History | None = None) -> Ask:
    """The request in `body`; `last` is what its execution said before. Raises ProxyError (400) naming the field."""
    fields = load(body)
    if not isinstance(fields.get("model"), str):
        raise malformed("you must provide a model parameter", "model")
    messages = fields.get("messages")
    if not isinstance(messages, list) or not messages:
        raise malformed("messages must be a list of at least one message", "messages")
    if fields.get("n") not in (None, 1):
        raise malformed("n must be 1: ask several times instead", "n")
    options = fields.get("stream_options")
    return Ask(
        dialect=DIALECT,
        model=fields["model"],
        history=_history(fields.get("tools"), messages, last, len(body)),
        max_tokens=_limit(fields),
        stream=bool(fields.get("stream")),
        usage_in_stream=isinstance(options, dict) and bool(options.get("include_usage")),
        notes=tuple(f"{name} ignored" for name in _IGNORED if fields.get(name) not in (None, [], False, "auto")),
    )


def _history(raw_tools: Any, raw: list[Any], last: History | None, nbytes: int) -> History:
    """The history, of which only what `last` does not hold is parsed and hashed."""
    known = last.shared(raw_tools, raw) if last is not None else 0
    if last is None or not known:
        tools = _tools(raw_tools)
        messages = [_message(message, index) for index, message in enumerate(raw)]
        chains = links(begin(orjson.dumps(tools, option=orjson.OPT_SORT_KEYS)), messages)
        return History(raw_tools, raw, tools, messages, chains, nbytes)
    new = [_message(message, known + index) for index, message in enumerate(raw[known:])]
    chains = [*last.chains[:known], *links(last.chains[known - 1], new)]
    return History(last.raw_tools, [*last.raw[:known], *raw[known:]], last.tools, [*last.messages[:known], *new], chains, nbytes)


def load(body: bytes) -> dict[str, Any]:
    """The JSON object in `body`. Raises ProxyError (400)."""
    try:
        fields = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        fields = _mended(body, error)
    if not isinstance(fields, dict):
        raise malformed(f"the body must be a JSON object, not {type(fields).__name__}")
    return fields


def _mended(body: bytes, error: Exception) -> Any:
    """What orjson refuses but JSON allows: escapes of lone surrogates, which become U+FFFD."""
    try:
        return _whole(json.loads(body))
    except (ValueError, RecursionError):
        raise malformed(f"the body is not valid JSON: {error}") from error


def _whole(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    if isinstance(value, list):
        return [_whole(item) for item in value]
    if isinstance(value, dict):
        return {_whole(key): _whole(item) for key, item in value.items()}
    return value


def _limit(fields: dict[str, Any]) -> int | None:
    for name in ("max_completion_tokens", "max_tokens"):
        limit = fields.get(name)
        if limit is None:
            continue
        if not isinstance(limit, int) or isinstance(limit, bool) or limit < 1:
            raise malformed(f"{name} must be an integer of at least 1", name)
        return limit
    return None


def _tools(tools: Any) -> list[dict[str, Any]]:
    if tools is None:
        return []
    if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
        raise malformed("tools must be a list of objects", "tools")
    for index, tool in enumerate(tools):
        function = tool.get("function")
        if tool.get("type", "function") != "function" or not isinstance(function, dict) or not function.get("name"):
            raise malformed(f"tools[{index}] must be a function with a name", f"tools[{index}]")
    return tools


def _message(message: Any, index: int) -> Message:
    role = message.get("role") if isinstance(message, dict) else None
    author = _AUTHORS.get(role) if isinstance(role, str) else None
    if author is None:
        raise malformed(f"messages[{index}].role must be one of {', '.join(_AUTHORS)}", f"messages[{index}].role")
    content, thinking = message.get("content"), ""
    if not isinstance(content, str):
        content, thinking = _content(content, index)
    if author is Author.TOOL:
        return Message(author, content, answers=_text(message.get("tool_call_id")), name=_text(message.get("name")))
    if author is not Author.ASSISTANT:
        return Message(author, content)
    reasoning = message.get("reasoning_content") or message.get("reasoning") or thinking
    calls = message.get("tool_calls")
    return Message(author, content, _text(reasoning), _calls(calls, index) if calls else ())


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _content(content: Any, index: int) -> tuple[str, str]:
    """Text and thinking of a message's content, a string or a list of parts."""
    if content is None:
        return "", ""
    if not isinstance(content, list):
        raise malformed(f"messages[{index}].content must be a string or a list of parts", f"messages[{index}].content")
    texts, thinking = [], []
    for part in content:
        kind = part.get("type") if isinstance(part, dict) else None
        if kind in ("text", "refusal", "input_text", "output_text"):
            texts.append(_text(part.get("text", part.get("refusal"))))
        elif kind in ("thinking", "reasoning"):
            thinking.append(_text(part.get("thinking", part.get("text"))))
        else:
            where = f"messages[{index}].content"
            raise ProxyError(
                400,
                "unsupported_content",
                f"{where}: parts of type {kind!r} are not supported: this model reads text only",
                param=where,
            )
    return "".join(texts), "".join(thinking)


def _calls(calls: Any, index: int) -> tuple[ToolCall, ...]:
    if not isinstance(calls, list):
        raise malformed(f"messages[{index}].tool_calls must be a list", f"messages[{index}].tool_calls")
    return tuple([_call(call, index, at) for at, call in enumerate(calls)])


def _call(call: Any, index: int, at: int) -> ToolCall:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        where = f"messages[{index}].tool_calls[{at}]"
        raise malformed(f"{where} must be a function call with a name", where)
    arguments = function.get("arguments", "")
    text = arguments if isinstance(arguments, str) else orjson.dumps(arguments).decode()
    return ToolCall(_text(call.get("id")), function["name"], text)


def answer(found: Answer, model: str) -> bytes:
    """The body of a whole answer."""
    message: dict[str, Any] = {"role": "assistant", "content": found.text if found.text or not found.calls else None}
    if found.reasoning:
        message["reasoning_content"] = found.reasoning
    if found.calls:
        message["tool_calls"] = [_wire(call) for call in found.calls]
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": _FINISH[found.finish]}
    return orjson.dumps(
        {
            "id": f"chatcmpl-{found.call}",
            "object": "chat.completion",
            "created": found.created,
            "model": model,
            "choices": [choice],
            "usage": _usage(found.usage),
        }
    )


def opening(call: str, created: int, model: str) -> bytes:
    """The first chunk: who speaks."""
    return _chunk(call, created, model, {"role": "assistant", "content": ""})


def delta(piece: Piece, call: str, created: int, model: str) -> bytes:
    """A chunk of text or reasoning."""
    field = "content" if piece.channel is Channel.TEXT else "reasoning_content"
    return _chunk(call, created, model, {field: piece.text})


def closing(found: Answer, call: str, created: int, model: str, usage: bool) -> Iterator[bytes]:
    """The chunks that are held until the record stands: tool calls, the finish reason, the usage."""
    for index, tool_call in enumerate(found.calls):
        yield _chunk(call, created, model, {"tool_calls": [{"index": index, **_wire(tool_call)}]})
    yield _chunk(call, created, model, {}, _FINISH[found.finish])
    if usage:
        last = {
            "id": f"chatcmpl-{call}",
            **_HEAD,
            "created": created,
            "model": model,
            "choices": [],
            "usage": _usage(found.usage),
        }
        yield _event(orjson.dumps(last))
    yield _event(b"[DONE]")


KEEP_ALIVE = b": waiting\n\n"


def error(problem: ProxyError) -> bytes:
    """The body of an error."""
    return orjson.dumps(
        {
            "error": {
                "message": problem.message,
                "type": problem.kind,
                "param": problem.param,
                "code": problem.code,
            }
        }
    )


def broken_stream(problem: ProxyError) -> bytes:
    """An error after the stream has begun, and its end."""
    return _event(error(problem)) + _event(b"[DONE]")


def _wire(call: ToolCall) -> dict[str, Any]:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


def _usage(usage: Usage) -> dict[str, Any]:
    return {
        "prompt_tokens": usage.prompt,
        "completion_tokens": usage.output,
        "total_tokens": usage.prompt + usage.output,
        "prompt_tokens_details": {"cached_tokens": usage.cached},
    }


def _chunk(call: str, created: int, model: str, fields: dict[str, Any], finish: str | None = None) -> bytes:
    choice = {"index": 0, "delta": fields, "logprobs": None, "finish_reason": finish}
    return _event(orjson.dumps({"id": f"chatcmpl-{call}", **_HEAD, "created": created, "model": model, "choices": [choice]}))


def _event(data: bytes) -> bytes:
    return b"data: " + data + b"\n\n"

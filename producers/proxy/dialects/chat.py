"""OpenAI Chat Completions: bodies in, answers, chunks and errors out.

`stop` strings are ignored (noted in the record): a turn ends at the model's own stop tokens, so that what is recorded
is what was sampled. Sampling parameters belong to the run. Unknown fields are ignored.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from gyre_engine.events.calls import Finish
from gyre_engine.trees.conversation import Author, Conversation, Message, ToolCall
from producers.proxy.dialects.body import flat, ignored, limit, load, model_of, require_flat, spelled, text
from producers.proxy.dialects.openai import error_body, model_list, refusal
from producers.proxy.dialects.port import Counts, Refuses, Whole
from producers.proxy.exchange import Answer, Ask, Channel, Piece, ProxyError, Usage, malformed
from producers.proxy.histories import Head, History, one_by_one, read_history

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


class Chat:
    """The dialect. `stop` strings are ignored, see above."""

    name = "chat"
    path = "/v1/chat/completions"
    beside: Sequence[Counts | Refuses] = ()

    def speaks(self, headers: Mapping[str, str]) -> bool:
        """Its clients send nothing that others do not."""
        return False

    def parse(self, body: bytes, last: History | None = None, sampled: Conversation | None = None) -> Ask:
        """The request in `body`. Raises ProxyError (400) naming the field."""
        fields = load(body)
        model, messages = model_of(fields), fields.get("messages")
        if not isinstance(messages, list) or not messages:
            raise malformed("messages must be a list of at least one message", "messages")
        if fields.get("n") not in (None, 1):
            raise malformed("n must be 1: ask several times instead", "n")
        options, raw_tools = fields.get("stream_options"), fields.get("tools")
        return Ask(
            dialect=self.name,
            model=model,
            history=read_history(
                raw_tools,
                lambda: Head(raw_tools, _tools(raw_tools)),
                messages,
                flat(one_by_one(_message), "messages"),
                last,
                sampled,
                len(body),
            ),
            max_tokens=limit(fields, "max_completion_tokens", "max_tokens"),
            stream=bool(fields.get("stream")),
            usage_in_stream=isinstance(options, dict) and bool(options.get("include_usage")),
            notes=ignored(fields, _IGNORED),
        )

    def answer(self, found: Answer, ask: Ask) -> bytes:
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
                "model": ask.model,
                "choices": [choice],
                "usage": _usage(found.usage),
            }
        )

    def stream(self, ask: Ask, call: str, created: int) -> ChatStream:
        """A streamed answer."""
        return ChatStream(ask, call, created)

    def error(self, problem: ProxyError) -> Whole:
        """A refusal in OpenAI's shape."""
        return refusal(problem)

    def models(self, names: Sequence[str]) -> bytes:
        """The models that can be asked for."""
        return model_list(names)


class ChatStream:
    """Chunks of one answer. Usage comes in a chunk of its own where it was asked for."""

    def __init__(self, ask: Ask, call: str, created: int) -> None:
        self._usage = ask.usage_in_stream
        self._base = {"id": f"chatcmpl-{call}", "object": "chat.completion.chunk", "created": created, "model": ask.model}

    def opening(self) -> bytes:
        """The first chunk: who speaks."""
        return self._chunk({"role": "assistant", "content": ""})

    def delta(self, piece: Piece) -> bytes:
        """A chunk of text or reasoning."""
        field = "content" if piece.channel is Channel.TEXT else "reasoning_content"
        return self._chunk({field: piece.text})

    def keep_alive(self) -> bytes:
        """A comment."""
        return b": waiting\n\n"

    def closing(self, answer: Answer) -> bytes:
        """Tool calls, the finish reason, the usage, the end."""
        calls = [self._chunk({"tool_calls": [{"index": index, **_wire(call)}]}) for index, call in enumerate(answer.calls)]
        finish = self._chunk({}, _FINISH[answer.finish])
        usage = _event(orjson.dumps({**self._base, "choices": [], "usage": _usage(answer.usage)})) if self._usage else b""
        return b"".join([*calls, finish, usage, _event(b"[DONE]")])

    def broken(self, problem: ProxyError) -> bytes:
        """An error, and the end."""
        return _event(error_body(problem)) + _event(b"[DONE]")

    def _chunk(self, fields: dict[str, Any], finish: str | None = None) -> bytes:
        choice = {"index": 0, "delta": fields, "logprobs": None, "finish_reason": finish}
        return _event(orjson.dumps({**self._base, "choices": [choice]}))


def _tools(tools: Any) -> list[dict[str, Any]]:
    if tools is None:
        return []
    if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
        raise malformed("tools must be a list of objects", "tools")
    require_flat(tools, "tools")
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
        return Message(author, content, answers=text(message.get("tool_call_id")), name=text(message.get("name")))
    if author is not Author.ASSISTANT:
        return Message(author, content)
    reasoning = message.get("reasoning_content") or message.get("reasoning") or thinking
    calls = message.get("tool_calls")
    return Message(author, content, text(reasoning), _calls(calls, index) if calls else ())


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
            texts.append(text(part.get("text", part.get("refusal"))))
        elif kind in ("thinking", "reasoning"):
            thinking.append(text(part.get("thinking", part.get("text"))))
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
    written = arguments if isinstance(arguments, str) else spelled(arguments)
    return ToolCall(text(call.get("id")), function["name"], written)


def _wire(call: ToolCall) -> dict[str, Any]:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


def _usage(usage: Usage) -> dict[str, Any]:
    return {
        "prompt_tokens": usage.prompt,
        "completion_tokens": usage.output,
        "total_tokens": usage.prompt + usage.output,
        "prompt_tokens_details": {"cached_tokens": usage.cached},
    }


def _event(data: bytes) -> bytes:
    return b"data: " + data + b"\n\n"

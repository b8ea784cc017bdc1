"""The items of a Responses request as messages.

An assistant's turn spans items: reasoning, a message, calls, in whatever order a client keeps them. What stands side by side is one
turn, except that a second reasoning, a second text, or an item or call of another answer begins the next one: clients that lost a
connection send what they had of the first answer before the second.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from gyre_engine.trees.conversation import Author, Message, ToolCall
from producers.proxy.dialects.body import spelled, text
from producers.proxy.dialects.responses.output import origin
from producers.proxy.dialects.responses.tools import Tools, as_arguments
from producers.proxy.exchange import ProxyError, malformed
from producers.proxy.histories import Reader

_AUTHORS = {"system": Author.SYSTEM, "developer": Author.SYSTEM, "user": Author.USER, "assistant": Author.ASSISTANT}
_TEXTS = ("input_text", "output_text", "text", "refusal", "summary_text")
_THOUGHTS = ("reasoning_text", "reasoning", "thinking")
_CALL = re.compile(r"(call_[0-9a-f]{24})_\d+")
"""The id of a tool call of a recorded answer (gyre_engine.trees.conversation.wire_id)."""


@dataclass(frozen=True, slots=True)
class _Part:
    """What one item says of an assistant's turn. origin: the response that it stems from, where its id tells."""

    text: str = ""
    reasoning: str = ""
    call: ToolCall | None = None
    origin: str | None = None


@dataclass(slots=True)
class _Turn:
    """An assistant's turn, as far as it was read."""

    text: str = ""
    reasoning: str = ""
    calls: list[ToolCall] = field(default_factory=list)
    origin: str | None = None

    def takes(self, part: _Part) -> bool:
        """Whether `part` belongs to this turn."""
        if self.origin and part.origin and self.origin != part.origin:
            return False
        if (part.reasoning and self.reasoning) or (part.text and self.text):
            return False
        return part.call is None or not self.calls or _one_answer(self.calls[-1].id, part.call.id)

    def add(self, part: _Part) -> None:
        """Go on with `part`."""
        self.text += part.text
        self.reasoning += part.reasoning
        self.calls += [part.call] if part.call else []
        self.origin = self.origin or part.origin

    def message(self) -> Message:
        """The turn as a message."""
        return Message(Author.ASSISTANT, self.text, self.reasoning, tuple(self.calls))


def reader(tools: Tools) -> Reader:
    """Reads items into messages. Raises ProxyError (400) naming the item."""

    def read(raw: Sequence[Any], start: int) -> Iterator[tuple[Message, int]]:
        turn: _Turn | None = None
        for index in range(start, len(raw)):
            found = _read(raw[index], f"input[{index}]", tools)
            if turn is not None and (isinstance(found, Message) or not turn.takes(found)):
                yield turn.message(), index
                turn = None
            if isinstance(found, Message):
                yield found, index + 1
            else:
                turn = turn or _Turn()
                turn.add(found)
        if turn is not None:
            yield turn.message(), len(raw)

    return read


def _one_answer(one: str, other: str) -> bool:
    """Whether two tool calls can stem from one answer, by their ids."""
    first, second = _CALL.fullmatch(one), _CALL.fullmatch(other)
    return first is None or second is None or first.group(1) == second.group(1)


def _read(item: Any, where: str, tools: Tools) -> Message | _Part:
    if not isinstance(item, dict):
        raise malformed(f"{where} must be an object", where)
    kind = item.get("type")
    read = _message if kind is None and "role" in item else _ITEMS.get(kind) if isinstance(kind, str) else None
    if read is None:
        raise malformed(f"{where}: items of type {kind!r} are not supported; known: {', '.join(_ITEMS)}", f"{where}.type")
    return read(item, where, tools)


def _message(item: dict[str, Any], where: str, _: Tools) -> Message | _Part:
    role = item.get("role")
    author = _AUTHORS.get(role) if isinstance(role, str) else None
    if author is None:
        raise malformed(f"{where}.role must be one of {', '.join(_AUTHORS)}", f"{where}.role")
    said, thought = _content(item.get("content"), f"{where}.content")
    return _Part(said, thought, origin=_origin(item)) if author is Author.ASSISTANT else Message(author, said)


def _reasoning(item: dict[str, Any], where: str, _: Tools) -> _Part:
    """The reasoning itself, else its summary. What another server encrypted cannot be read."""
    for name in ("content", "summary"):
        said, thought = _content(item.get(name), f"{where}.{name}")
        if said or thought:
            return _Part(reasoning=said + thought, origin=_origin(item))
    return _Part(origin=_origin(item))


def _function_call(item: dict[str, Any], where: str, tools: Tools) -> _Part:
    arguments = item.get("arguments", "")
    return _call(item, where, tools, arguments if isinstance(arguments, str) else _json(arguments))


def _custom_call(item: dict[str, Any], where: str, tools: Tools) -> _Part:
    return _call(item, where, tools, as_arguments(text(item.get("input"))))


def _search_call(item: dict[str, Any], where: str, tools: Tools) -> _Part:
    return _function_call({**item, "name": "tool_search"}, where, tools)


def _shell_call(item: dict[str, Any], where: str, tools: Tools) -> _Part:
    return _call({**item, "name": "local_shell"}, where, tools, _json(item.get("action")))


def _call(item: dict[str, Any], where: str, tools: Tools, arguments: str) -> _Part:
    name = item.get("name")
    if not isinstance(name, str) or not name:
        raise malformed(f"{where} must have a name", f"{where}.name")
    call = ToolCall(_id(item), tools.told(text(item.get("namespace")), name), arguments)
    return _Part(call=call, origin=_origin(item))


def _output(item: dict[str, Any], where: str, _: Tools) -> Message:
    said, _thought = _content(item.get("output"), f"{where}.output")
    return Message(Author.TOOL, said, answers=_id(item), name=text(item.get("name")))


def _found_tools(item: dict[str, Any], _where: str, _: Tools) -> Message:
    return Message(Author.TOOL, _json(item.get("tools")), answers=_id(item), name="tool_search")


_ITEMS: dict[str, Callable[[dict[str, Any], str, Tools], Message | _Part]] = {
    "message": _message,
    "reasoning": _reasoning,
    "function_call": _function_call,
    "function_call_output": _output,
    "custom_tool_call": _custom_call,
    "custom_tool_call_output": _output,
    "local_shell_call": _shell_call,
    "local_shell_call_output": _output,
    "tool_search_call": _search_call,
    "tool_search_output": _found_tools,
}


def _id(item: dict[str, Any]) -> str:
    return text(item.get("call_id")) or text(item.get("id"))


def _origin(item: dict[str, Any]) -> str | None:
    return origin(text(item.get("id")))


def _content(content: Any, where: str) -> tuple[str, str]:
    """Text and thinking of a content, a string or a list of parts."""
    if content is None or isinstance(content, str):
        return content or "", ""
    if not isinstance(content, list):
        raise malformed(f"{where} must be a string or a list of parts", where)
    said, thought = [], []
    for part in content:
        kind = part.get("type") if isinstance(part, dict) else None
        if kind in _TEXTS:
            said.append(text(part.get("text", part.get("refusal"))))
        elif kind in _THOUGHTS:
            thought.append(text(part.get("text", part.get("thinking"))))
        else:
            message = f"{where}: parts of type {kind!r} are not supported: this model reads text only"
            raise ProxyError(400, "unsupported_content", message, param=where)
    return "".join(said), "".join(thought)


def _json(value: Any) -> str:
    """A value as text that does not depend on the order of keys."""
    return spelled(value, sort=True)

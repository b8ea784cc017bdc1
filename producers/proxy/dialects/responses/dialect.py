"""OpenAI Responses: bodies in, answers, events and errors out.

Nothing is stored: `previous_response_id`, `conversation`, stored prompts and references to items are refused as by a server that has
them not. `instructions` stand before the items and belong to one request. Sampling parameters belong to the run. What does not count
here (schemas of the text, reasoning effort, what to include, unknown fields) is ignored and noted. A limit that cuts the answer
makes it `incomplete`, except where tool calls came before the cut: those can be acted on, and clients end at `incomplete`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from gyre_engine.trees.conversation import Author, Conversation, Message
from producers.proxy.dialects.body import few, flat, ignored, limit, load, model_of, require_flat
from producers.proxy.dialects.openai import model_list, refusal
from producers.proxy.dialects.port import Counts, Refuses, Whole
from producers.proxy.dialects.responses.input import reader
from producers.proxy.dialects.responses.output import ended, items, response
from producers.proxy.dialects.responses.stream import ResponsesStream
from producers.proxy.dialects.responses.tools import Tools, read_tools
from producers.proxy.exchange import Answer, Ask, ProxyError, malformed
from producers.proxy.histories import Head, History, read_history

_READ = frozenset({"model", "input", "instructions", "tools", "stream", "max_output_tokens", "parallel_tool_calls", "store"})
_SHOWN = 60
"""Characters of a note."""


@dataclass(frozen=True, slots=True)
class _Head(Head):
    """What stands before the items, and the tools as they are named on both sides."""

    named: Tools = field(default_factory=Tools)


def _no_websocket() -> ProxyError:
    """Its clients turn to POST at once where they are told that there is none."""
    return ProxyError(426, "websocket_not_supported", f"there is no websocket here: POST to {Responses.path}")


class Responses:
    """The dialect."""

    name = "responses"
    path = "/v1/responses"
    beside: Sequence[Counts | Refuses] = (Refuses(path, "GET", _no_websocket),)

    def speaks(self, headers: Mapping[str, str]) -> bool:
        """Its clients send nothing that others do not."""
        return False

    def parse(self, body: bytes, last: History | None = None, sampled: Conversation | None = None) -> Ask:
        """The request in `body`. Raises ProxyError (400) naming the field."""
        fields = load(body)
        model = model_of(fields)
        _refuse_what_is_stored(fields)
        raw, head = _items(fields.get("input")), _head(fields, last)
        return Ask(
            dialect=self.name,
            model=model,
            history=read_history(head.raw, lambda: head, raw, flat(reader(head.named), "input"), last, sampled, len(body)),
            max_tokens=limit(fields, "max_output_tokens"),
            stream=bool(fields.get("stream")),
            notes=(*head.named.notes, *_notes(fields)),
            memo=head.named,
        )

    def answer(self, found: Answer, ask: Ask) -> bytes:
        """The body of a whole answer."""
        base = response(ask, found.call, found.created)
        return orjson.dumps(ended(base, found, items(found, found.call, ask.memo)))

    def stream(self, ask: Ask, call: str, created: int) -> ResponsesStream:
        """A streamed answer."""
        return ResponsesStream(ask, call, created)

    def error(self, problem: ProxyError) -> Whole:
        """A refusal in OpenAI's shape; what other dialects call messages is the input here."""
        return refusal(problem, param="input" if problem.param == "messages" else None)

    def models(self, names: Sequence[str]) -> bytes:
        """The models that can be asked for."""
        return model_list(names)


def _refuse_what_is_stored(fields: dict[str, Any]) -> None:
    """Nothing is stored here, so nothing stored can be referred to."""
    previous = fields.get("previous_response_id")
    if previous is not None:
        message = f"Previous response with id {str(previous)[:80]!r} not found: nothing is stored here, send the whole input"
        raise ProxyError(400, "previous_response_not_found", message, param="previous_response_id")
    for name in ("conversation", "prompt"):
        if fields.get(name) is not None:
            raise malformed(f"{name} is not supported: nothing is stored here, send the whole input", name)
    if fields.get("background"):
        raise malformed("background is not supported: nothing is stored here, wait for the answer", "background")


def _items(given: Any) -> list[Any]:
    if isinstance(given, str):
        return [{"role": "user", "content": given}]
    if not isinstance(given, list) or not given:
        raise malformed("input must be a string or a list of at least one item", "input")
    return given


def _head(fields: dict[str, Any], last: History | None) -> _Head:
    """What stands before the items: read again only where it differs from the last request's."""
    instructions, tools = fields.get("instructions"), fields.get("tools")
    if not isinstance(instructions, str | None):
        raise malformed("instructions must be a string", "instructions")
    raw = ("responses", instructions, tools)
    if last is not None and isinstance(last.head, _Head) and last.head.raw == raw:
        return last.head
    require_flat(tools, "tools")
    named = read_tools(tools)
    messages = (Message(Author.SYSTEM, instructions),) if instructions else ()
    return _Head(raw, named.offered, messages, named)


def _notes(fields: dict[str, Any]) -> tuple[str, ...]:
    """What is ignored, by name."""
    unread = tuple(sorted(name for name in fields if name not in _READ))
    notes = list(few(note[:_SHOWN] for note in ignored(fields, unread)))
    if fields.get("parallel_tool_calls") is False:
        notes.append("parallel_tool_calls ignored")
    if fields.get("store"):
        notes.append("store ignored: nothing is stored")
    return tuple(notes)

"""Anthropic Messages: bodies in; what goes out is worded in `stream`.

What changes at every call (cache marks, the billing line of a system text) is taken off before anything is compared. Blocks of
text are put together as they are. Assistant items that follow each other are one turn, as at the API. Results of tools become
a message each, before the rest of their user's item; that one failed is said by its text, and by `error` where it has none.
`stop_sequences`, `thinking` and sampling parameters belong to the run: noted, as are tools that the API's own servers would
run, which are left out. Unknown fields are ignored; without `max_tokens` the run's limit holds.

The API promises that a tool call's `input` is an object. Where the model wrote something else (broken JSON, a bare string) the client
gets `{"__unparsedToolInput": {"raw": "<the sampled text>"}}`, whole or streamed: Claude Code itself makes this of such
arguments, tells the model so, and no official client fails on it. What is recorded, trained and put back into the next prompt
is the sampled text; the wrapped form in a history means the text in it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import orjson

from gyre_engine.trees.conversation import Author, Message, ToolCall, steady
from producers.proxy.dialects.body import few, flat, ignored, limit, load, model_of, require_flat, spelled, text
from producers.proxy.dialects.messages.stream import UNPARSED, MessagesStream, content, ending, error_body, status, usage
from producers.proxy.dialects.port import Counts, Refuses, Whole
from producers.proxy.exchange import Answer, Ask, ProxyError, malformed
from producers.proxy.histories import Head, History, read_history

_IGNORED = ("stop_sequences", "temperature", "top_p", "top_k", "thinking", "context_management", "output_config", "mcp_servers")


def _count(tokens: int) -> bytes:
    return orjson.dumps({"input_tokens": tokens})


class Messages:
    """The dialect."""

    name = "messages"
    path = "/v1/messages"
    beside: Sequence[Counts | Refuses] = (Counts(f"{path}/count_tokens", _count),)

    def speaks(self, headers: Mapping[str, str]) -> bool:
        """Its clients name the version of the API that they were written for."""
        return "anthropic-version" in headers

    def parse(self, body: bytes, last: History | None = None) -> Ask:
        """The request in `body`. Raises ProxyError (400) naming the field."""
        fields = load(body)
        model, items = model_of(fields), fields.get("messages")
        if not isinstance(items, list) or not items:
            raise malformed("messages: a list of at least one message is required", "messages")
        for item in items:
            _settle(item)
        system, tools = _system(fields.get("system")), _unmarked(fields.get("tools"))
        return Ask(
            dialect=self.name,
            model=model,
            history=read_history([system, tools], lambda: _head(system, tools), items, flat(_read, "messages"), last, len(body)),
            max_tokens=limit(fields, "max_tokens"),
            stream=bool(fields.get("stream")),
            notes=(*ignored(fields, _IGNORED), *_choice(fields.get("tool_choice")), *_left_out(tools)),
        )

    def answer(self, found: Answer, ask: Ask) -> bytes:
        """The body of a whole answer."""
        return orjson.dumps(
            {
                "id": f"msg_{found.call}",
                "type": "message",
                "role": "assistant",
                "model": ask.model,
                "content": content(found),
                **ending(found),
                "usage": usage(found.usage),
            }
        )

    def stream(self, ask: Ask, call: str, created: int) -> MessagesStream:
        """A streamed answer; the API's messages have no time of creation."""
        return MessagesStream(ask, call)

    def error(self, problem: ProxyError) -> Whole:
        """A refusal. A retry hint is in seconds."""
        hints = {"retry-after": str(problem.retry_after)} if problem.retry_after is not None else {}
        return Whole(status(problem), error_body(problem), hints)

    def models(self, names: Sequence[str]) -> bytes:
        """The models that can be asked for."""
        models = [{"type": "model", "id": name, "display_name": name, "created_at": "1970-01-01T00:00:00Z"} for name in names]
        ends = {"first_id": names[0], "last_id": names[-1]} if names else {"first_id": None, "last_id": None}
        return orjson.dumps({"data": models, "has_more": False, **ends})


def _settle(item: Any) -> None:
    """An item, changed in place to what stays the same in later requests: no cache marks, and a lone text block as a string."""
    blocks = item.get("content") if isinstance(item, dict) else None
    if not isinstance(blocks, list):
        return
    for block in blocks:
        if isinstance(block, dict):
            block.pop("cache_control", None)
            _settle(block)
    if len(blocks) == 1 and isinstance(blocks[0], dict) and blocks[0].get("type") == "text":
        item["content"] = text(blocks[0].get("text"))


def _unmarked(tools: Any) -> Any:
    """The tools as they came, less their cache marks."""
    for tool in tools if isinstance(tools, list) else ():
        if isinstance(tool, dict):
            tool.pop("cache_control", None)
    return tools


def _system(system: Any) -> str:
    """The text of the `system` field, a string or text blocks, less the line that some clients change at every call."""
    if isinstance(system, list):
        return "".join([steady(_block_text(block, f"system.{at}")) for at, block in enumerate(system)])
    if system is not None and not isinstance(system, str):
        raise malformed("system: must be a string or a list of text blocks", "system")
    return steady(system or "")


def _head(system: str, tools: Any) -> Head:
    messages = (Message(Author.SYSTEM, system),) if system else ()
    return Head([system, tools], _tools(tools), messages)


def _tools(tools: Any) -> list[dict[str, Any]]:
    """The client's own tools in OpenAI's function form."""
    if tools is None:
        return []
    if not isinstance(tools, list):
        raise malformed("tools: must be a list", "tools")
    require_flat(tools, "tools")
    return [_tool(tool, f"tools.{at}") for at, tool in enumerate(tools) if not _is_servers(tool)]


def _tool(tool: Any, where: str) -> dict[str, Any]:
    if not isinstance(tool, dict) or not isinstance(tool.get("name"), str) or not tool["name"]:
        raise malformed(f"{where}: must be a tool with a name", where)
    if not isinstance(tool.get("input_schema"), dict):
        raise malformed(f"{where}.input_schema: must be a JSON schema", where)
    described = {"description": tool["description"]} if isinstance(tool.get("description"), str) else {}
    return {"type": "function", "function": {"name": tool["name"], **described, "parameters": tool["input_schema"]}}


def _is_servers(tool: Any) -> bool:
    """Whether a tool is one that the API defines (web_search_20250305 and the like): it has a type and no schema."""
    return isinstance(tool, dict) and tool.get("type") not in (None, "custom") and "input_schema" not in tool


def _left_out(tools: Any) -> tuple[str, ...]:
    if not isinstance(tools, list):
        return ()
    return few(f"tool {str(tool['type'])[:64]} left out" for tool in tools if _is_servers(tool))


def _choice(choice: Any) -> tuple[str, ...]:
    plain = choice is None or (isinstance(choice, dict) and choice.get("type") == "auto")
    return () if plain else ("tool_choice ignored",)


def _read(items: Sequence[Any], start: int) -> Iterator[tuple[Message, int]]:
    """A turn of the assistant may go on over several items; an item of a user may be several messages."""
    at = start
    while at < len(items):
        end, role = at + 1, _role(items[at], at)
        while role == "assistant" and end < len(items) and _role(items[end], end) == role:
            end += 1
        if role == "assistant":
            yield _assistant(items[at:end], at), end
        else:
            for message in _others(items[at], role, f"messages.{at}.content"):
                yield message, end
        at = end


def _role(item: Any, at: int) -> str:
    role = item.get("role") if isinstance(item, dict) else None
    if role not in ("user", "assistant", "system"):
        raise malformed(f"messages.{at}.role: must be 'user', 'assistant' or 'system'", f"messages.{at}.role")
    return str(role)


def _others(item: dict[str, Any], role: str, where: str) -> list[Message]:
    """The messages of a user's or a system's item: results of tools first, then the text, if there is any or nothing else."""
    if role == "system":
        return [Message(Author.SYSTEM, _text(item.get("content"), where))]
    if isinstance(item.get("content"), str):
        return [Message(Author.USER, item["content"])]
    results, texts = [], []
    for at, block in enumerate(_blocks(item.get("content"), where)):
        if block.get("type") == "tool_result":
            results.append(_result(block, f"{where}.{at}"))
        else:
            texts.append(_block_text(block, f"{where}.{at}"))
    return [*results, Message(Author.USER, "".join(texts))] if texts or not results else results


def _result(block: dict[str, Any], where: str) -> Message:
    found = _text(block.get("content") or "", f"{where}.content")
    if block.get("is_error") and not found:
        found = "error"
    return Message(Author.TOOL, found, answers=text(block.get("tool_use_id")))


def _assistant(items: Sequence[dict[str, Any]], first: int) -> Message:
    texts, thinking, calls = [], [], []
    for index, item in enumerate(items, first):
        where = f"messages.{index}.content"
        blocks = item.get("content")
        if isinstance(blocks, str):
            texts.append(blocks)
            continue
        for at, block in enumerate(_blocks(blocks, where)):
            match block.get("type"):
                case "thinking":
                    thinking.append(text(block.get("thinking")))
                case "redacted_thinking":
                    pass  # nobody but the API can read it
                case "tool_use":
                    calls.append(_tool_use(block, f"{where}.{at}"))
                case _:
                    texts.append(_block_text(block, f"{where}.{at}"))
    return Message(Author.ASSISTANT, "".join(texts), "".join(thinking), tuple(calls))


def _tool_use(block: dict[str, Any], where: str) -> ToolCall:
    """A call that a client sends back, or invents; one that was sampled here is put back by its id as it was."""
    if not isinstance(block.get("name"), str):
        raise malformed(f"{where}.name: must be a string", where)
    given = block.get("input")
    wrapped = given.get(UNPARSED) if isinstance(given, dict) and len(given) == 1 else None
    if isinstance(wrapped, dict) and isinstance(wrapped.get("raw"), str):
        arguments = wrapped["raw"]
    else:
        arguments = given if isinstance(given, str) else spelled(given if given is not None else {})
    return ToolCall(text(block.get("id")), block["name"], arguments)


def _text(value: Any, where: str) -> str:
    """Content that must be text: a string or blocks of text."""
    if isinstance(value, str):
        return value
    return "".join([_block_text(block, f"{where}.{at}") for at, block in enumerate(_blocks(value, where))])


def _blocks(value: Any, where: str) -> list[dict[str, Any]]:
    if not isinstance(value, list):
        raise malformed(f"{where}: must be a string or a list of blocks", where)
    for at, block in enumerate(value):
        if not isinstance(block, dict):
            raise malformed(f"{where}.{at}: must be a block, an object with a type", where)
    return value


def _block_text(block: Any, where: str) -> str:
    """The text of a block that has one. Raises ProxyError (400): images and other documents cannot be read."""
    kind = block.get("type") if isinstance(block, dict) else None
    if kind == "text":
        return text(block.get("text"))
    source = block.get("source") if kind == "document" else None
    if isinstance(source, dict) and source.get("type") == "text":
        return _titled(block, text(source.get("data")))
    if isinstance(source, dict) and source.get("type") == "content":
        return _titled(block, _text(source.get("content"), f"{where}.source.content"))
    if kind == "search_result":
        return _titled(block, _text(block.get("content"), f"{where}.content"))
    raise malformed(f"{where}: blocks of type {kind!r} are not supported here: this model reads text only", where)


def _titled(block: dict[str, Any], body: str) -> str:
    """A document's text below its title and what the client says about it."""
    return "\n".join([line for line in (text(block.get("title")), text(block.get("context"))) if line] + [body])

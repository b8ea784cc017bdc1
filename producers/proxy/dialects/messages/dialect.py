"""Anthropic Messages: bodies in, answers, errors and lists of models out.

What changes at every call (cache marks, the billing line of a system text) is taken off before anything is compared.
`stop_sequences`, `thinking` and sampling parameters belong to the run: noted, as are tools that the API's own servers would
run, which are left out. Unknown fields are ignored; without `max_tokens` the run's limit holds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from gyre_engine.trees.conversation import Author, Conversation, Message, steady
from producers.proxy.dialects.body import few, flat, ignored, limit, load, model_of, require_flat, text
from producers.proxy.dialects.messages.input import block_text, read
from producers.proxy.dialects.messages.output import content, ending, error_body, status, usage
from producers.proxy.dialects.messages.stream import MessagesStream
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

    def parse(self, body: bytes, last: History | None = None, sampled: Conversation | None = None) -> Ask:
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
            history=read_history(
                [system, tools], lambda: _head(system, tools), items, flat(read, "messages"), last, sampled, len(body)
            ),
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
        return "".join([steady(block_text(block, f"system.{at}")) for at, block in enumerate(system)])
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

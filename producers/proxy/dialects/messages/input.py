"""The items of a Messages request as messages.

Blocks of text are put together as they are. Assistant items that follow each other are one turn, as at the API. Results of tools
become a message each, before the rest of their user's item; that one failed is said by its text, and by `error` where it has none.
A tool call's `input` in the wrapped form of `output` means the text in it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from gyre_engine.trees.conversation import Author, Message, ToolCall
from producers.proxy.dialects.body import spelled, text
from producers.proxy.dialects.messages.output import UNPARSED
from producers.proxy.exchange import malformed


def read(items: Sequence[Any], start: int) -> Iterator[tuple[Message, int]]:
    """The messages from item `start` on, each with the item after it. Raises ProxyError (400) naming the field."""
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
            texts.append(block_text(block, f"{where}.{at}"))
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
                    texts.append(block_text(block, f"{where}.{at}"))
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
    return "".join([block_text(block, f"{where}.{at}") for at, block in enumerate(_blocks(value, where))])


def _blocks(value: Any, where: str) -> list[dict[str, Any]]:
    if not isinstance(value, list):
        raise malformed(f"{where}: must be a string or a list of blocks", where)
    for at, block in enumerate(value):
        if not isinstance(block, dict):
            raise malformed(f"{where}.{at}: must be a block, an object with a type", where)
    return value


def block_text(block: Any, where: str) -> str:
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

"""Anthropic's own client against a proxy in this process, and the history that an agent keeps with it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import anthropic
import httpx2

from gyre_engine.keys import mint
from tests.unit.proxy.conftest import SECRET, Stack

BASH = {"name": "bash", "description": "run", "input_schema": {"type": "object", "properties": {}}}
BILLING = "x-anthropic-billing-header: cc_version=2.1.197; cc_entrypoint=cli; cch={};"


def client(stack: Stack, key: str | None = None, execution: str = "g.0.0") -> anthropic.AsyncAnthropic:
    """The client, which tries once."""
    http = httpx2.AsyncClient(transport=httpx2.ASGITransport(stack.app), timeout=30)
    return anthropic.AsyncAnthropic(
        api_key=key or mint(SECRET, execution), base_url="http://proxy", http_client=http, max_retries=0
    )


def results(message: Any, *texts: str) -> dict[str, Any]:
    """A user's message with the results of all tool calls of an answer."""
    ids = [block.id for block in message.content if block.type == "tool_use"]
    assert len(ids) == len(texts)
    blocks = [{"type": "tool_result", "tool_use_id": id, "content": text} for id, text in zip(ids, texts, strict=True)]
    return {"role": "user", "content": blocks}


def said(message: Any) -> dict[str, Any]:
    """An answer as a message of a history."""
    return {"role": "assistant", "content": [block.model_dump(exclude_none=True) for block in message.content]}


def blocks(events: list[Any]) -> list[tuple[str, str]]:
    """What the blocks hold; each has one start and one stop, and only deltas that fit it."""
    found: list[tuple[str, str]] = []
    open_at = None
    fits = {"thinking_delta": "thinking", "signature_delta": "thinking", "text_delta": "text", "input_json_delta": "tool_use"}
    for event in events:
        if event.type == "content_block_start":
            assert open_at is None and event.index == len(found)
            open_at = event.index
            found.append((event.content_block.type, ""))
        elif event.type == "content_block_delta":
            kind, so_far = found[event.index]
            assert event.index == open_at and fits[event.delta.type] == kind
            fields = (getattr(event.delta, name, None) for name in ("thinking", "text", "partial_json"))
            found[event.index] = (kind, so_far + next((field for field in fields if field), ""))
        elif event.type == "content_block_stop":
            assert event.index == open_at
            open_at = None
    assert open_at is None
    return found


@dataclass
class Agent:
    """A client with its history."""

    stack: Stack
    fields: dict[str, Any] = field(default_factory=lambda: {"tools": [BASH]})
    history: list[dict[str, Any]] = field(default_factory=lambda: [{"role": "user", "content": "go"}])

    async def turn(self, **fields: Any) -> Any:
        """One answer, which the history then ends with."""
        asked = {"model": "policy", "max_tokens": 1000, "messages": self.history, **self.fields, **fields}
        message = await client(self.stack).messages.create(**asked)
        self.history.append(said(message))
        return message

    async def turn_streamed(self, **fields: Any) -> Any:
        """The events of an answer; the history stays as it is."""
        asked = {"model": "policy", "max_tokens": 1001, "messages": self.history, **self.fields, **fields}
        return await client(self.stack).messages.create(**asked, stream=True)

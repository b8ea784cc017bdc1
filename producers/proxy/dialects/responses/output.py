"""Answers in the words of the Responses dialect: the response object and the items of its output.

promises  integers are integers; an item's id names its response (`origin`), so that what clients send back tells its turn
"""

from __future__ import annotations

import re
from typing import Any

from gyre_engine.events.calls import Finish
from gyre_engine.trees.conversation import ToolCall
from producers.proxy.dialects.responses.tools import Tools, free_text
from producers.proxy.exchange import Answer, Ask, Channel, Usage

_ITEM = re.compile(r"(?:rs|msg|fc|ctc)_(resp_.+?)(?:_\d+)?")


def origin(item_id: str) -> str | None:
    """The id of the response that an item stems from, None where it is no item of this proxy."""
    found = _ITEM.fullmatch(item_id)
    return found.group(1) if found else None


def response(ask: Ask, id: str, created: int) -> dict[str, Any]:
    """A response that has just begun. What its client has sent (tools, instructions) is not sent back with every event."""
    return {
        "id": f"resp_{id}",
        "object": "response",
        "created_at": created,
        "status": "in_progress",
        "background": False,
        "error": None,
        "incomplete_details": None,
        "instructions": None,
        "max_output_tokens": ask.max_tokens,
        "metadata": {},
        "model": ask.model,
        "output": [],
        "parallel_tool_calls": True,
        "previous_response_id": None,
        "reasoning": {"effort": None, "summary": None},
        "store": False,
        "temperature": None,
        "text": {"format": {"type": "text"}},
        "tool_choice": "auto",
        "tools": [],
        "top_p": None,
        "truncation": "disabled",
        "usage": None,
    }


def ended(base: dict[str, Any], found: Answer, output: list[dict[str, Any]]) -> dict[str, Any]:
    """The response once its answer is recorded."""
    status = status_of(found)
    details = {"reason": "max_output_tokens"} if status == "incomplete" else None
    return {**base, "status": status, "incomplete_details": details, "output": output, "usage": _usage(found.usage)}


def status_of(found: Answer) -> str:
    """An answer cut by its limit is incomplete, except where its calls can be acted on: clients end at what is incomplete."""
    return "incomplete" if found.finish is Finish.LENGTH and not found.calls else "completed"


def items(found: Answer, id: str, tools: Tools) -> list[dict[str, Any]]:
    """The output of an answer, in the order in which the model speaks."""
    texts = [text_item(channel, id, found) for channel in channels(found)]
    return texts + [call_item(call, id, at, tools) for at, call in enumerate(found.calls)]


def channels(found: Answer) -> list[Channel]:
    """The texts that an answer has. One that says nothing at all still has an empty message."""
    silent = not (found.text or found.calls or found.reasoning)
    return [Channel.REASONING] * bool(found.reasoning) + [Channel.TEXT] * bool(found.text or silent)


def text_item(channel: Channel, id: str, found: Answer) -> dict[str, Any]:
    """A finished message, or finished reasoning. Reasoning goes out as a summary: that is what clients send back."""
    item = begun(channel, id)
    if channel is Channel.REASONING:
        return {**item, "summary": [part(channel, found.reasoning)]}
    return {**item, "status": status_of(found), "content": [part(channel, found.text)]}


def begun(channel: Channel, id: str) -> dict[str, Any]:
    """A message or reasoning that has no text yet."""
    if channel is Channel.REASONING:
        return {"type": "reasoning", "id": f"rs_resp_{id}", "summary": [], "encrypted_content": None}
    return {"type": "message", "id": f"msg_resp_{id}", "role": "assistant", "status": "in_progress", "content": []}


def part(channel: Channel, text: str) -> dict[str, Any]:
    """The one part of a message or of reasoning."""
    if channel is Channel.REASONING:
        return {"type": "summary_text", "text": text}
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def call_item(call: ToolCall, id: str, at: int, tools: Tools) -> dict[str, Any]:
    """A finished tool call, in the form of the tool that it means."""
    tool = tools.asked(call)
    where = {"namespace": tool.namespace} if tool.namespace else {}
    common = {"id": f"{'ctc' if tool.custom else 'fc'}_resp_{id}_{at}", "call_id": call.id, "name": tool.name, **where}
    if tool.custom:
        return {"type": "custom_tool_call", "status": "completed", **common, "input": free_text(call.arguments)}
    return {"type": "function_call", "status": "completed", **common, "arguments": call.arguments}


def _usage(usage: Usage) -> dict[str, Any]:
    return {
        "input_tokens": usage.prompt,
        "input_tokens_details": {"cached_tokens": usage.cached, "cache_write_tokens": 0},
        "output_tokens": usage.output,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning},
        "total_tokens": usage.prompt + usage.output,
    }

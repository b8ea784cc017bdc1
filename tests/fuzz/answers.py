"""What an answer is: recorded, refused in its dialect's own shape, or a fault. And what a client understands of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import orjson

from tests.fuzz.conversations import PATHS, Heard, Json
from tests.fuzz.wire import Request, Response

NO_HTTP = b"Invalid HTTP request received."
"""What the server says to bytes that are no HTTP, before there is any dialect."""


def dialect_at(request: Request) -> str:
    """In whose words a refusal must come: the path's, else the client's."""
    for name, path in PATHS.items():
        if request.target.startswith(path):
            return name
    return "messages" if any(line.startswith("anthropic-version") for line in request.head) else "chat"


def verdict(request: Request, found: Response) -> str:
    """`recorded`, `refused`, `other` (no model call: lists, counts, signs of life), `dropped`, `hang`, or what is wrong."""
    if found.end == "hang":
        return "hang"
    if found.end == "dropped":
        return "dropped"
    if found.end == "closed":
        return "dropped" if request.cut else "closed without an answer"
    if found.status >= 500:
        return f"status {found.status}"
    if 400 <= found.status < 500:
        return _refusal(request, found)
    if found.status != 200:
        return f"misshapen: status {found.status}"
    if request.method != "POST" or request.target.partition("?")[0] not in PATHS.values():
        return "other"
    return _recorded(dialect_at(request), found)


def _refusal(request: Request, found: Response) -> str:
    if request.method == "HEAD" or (found.body == NO_HTTP and request.framing not in ("length", "chunked")):
        return "refused"
    try:
        fields = orjson.loads(found.body)
    except orjson.JSONDecodeError:
        return f"misshapen: a {found.status} that is no JSON"
    error = fields.get("error") if isinstance(fields, dict) else None
    wanted = {"type", "message"} if dialect_at(request) == "messages" else {"type", "message", "param", "code"}
    if not isinstance(error, dict) or not wanted <= error.keys() or not (error["message"] and isinstance(error["message"], str)):
        return f"misshapen: a {found.status} without the dialect's error"
    return "refused" if dialect_at(request) != "messages" or fields.get("type") == "error" else "misshapen: no type `error`"


def _recorded(dialect: str, found: Response) -> str:
    if found.headers.get("content-type", "").startswith("text/event-stream"):
        try:
            events = list(events_of(found.body))
        except ValueError:
            return "misshapen: an event that is no JSON"
        failed = next((event for event in events if event.get("error")), None)
        failed = failed or next((event for event in events if event.get("type") == "response.failed"), None)
        if failed is not None:
            return f"an error in the stream: {str(failed)[:200]}"
        return "recorded" if _ends(dialect, found.body) else "misshapen: a stream without its end"
    try:
        whole = orjson.loads(found.body)
    except orjson.JSONDecodeError:
        return "misshapen: a 200 that is no JSON"
    field = {"chat": "choices", "messages": "content", "responses": "output"}[dialect]
    return "recorded" if isinstance(whole.get(field), list) else f"misshapen: no {field}"


def _ends(dialect: str, body: bytes) -> bool:
    last = body.rstrip().rpartition(b"\n\n")[2]
    if dialect == "chat":
        return last == b"data: [DONE]"
    ends = (b"event: message_stop",) if dialect == "messages" else (b"event: response.completed", b"event: response.incomplete")
    return last.startswith(ends)


def events_of(body: bytes) -> Iterator[Json]:
    """The JSON of each event of a stream. Raises ValueError."""
    for line in body.split(b"\n"):
        if line.startswith(b"data: ") and line != b"data: [DONE]":
            yield orjson.loads(line[6:])


def call_of(found: Response) -> str | None:
    """The record that a whole answer names."""
    if found.headers.get("content-type", "").startswith("text/event-stream"):
        return None
    return str(orjson.loads(found.body)["id"]).removeprefix("chatcmpl-").removeprefix("msg_").removeprefix("resp_")


def heard(dialect: str, found: Response) -> Heard:
    """What a client takes from a recorded answer, streamed or whole."""
    streamed = found.headers.get("content-type", "").startswith("text/event-stream")
    parts: Any = list(events_of(found.body)) if streamed else orjson.loads(found.body)
    return {"chat": _chat, "messages": _messages, "responses": _responses}[dialect](parts, streamed)


def _chat(parts: Any, streamed: bool) -> Heard:
    choices = [part["choices"][0] for part in (parts if streamed else [parts]) if part["choices"]]
    said = Heard()
    for message in (choice["delta" if streamed else "message"] for choice in choices):
        said.text += message.get("content") or ""
        said.reasoning += message.get("reasoning_content") or ""
        for call in message.get("tool_calls") or ():
            said.calls.append((call["id"], call["function"]["name"], call["function"]["arguments"]))
    return said


def _messages(parts: Any, streamed: bool) -> Heard:
    said = Heard()
    if not streamed:
        for block in parts["content"]:
            said.text += block.get("text", "")
            said.reasoning += block.get("thinking", "")
            if block["type"] == "tool_use":
                said.calls.append((block["id"], block["name"], orjson.dumps(block["input"]).decode()))
        return said
    for event in parts:
        begun, delta = event.get("content_block", {}), event.get("delta", {})
        if begun.get("type") == "tool_use":
            said.calls.append((begun["id"], begun["name"], ""))
        said.text += delta.get("text", "")
        said.reasoning += delta.get("thinking", "")
        if "partial_json" in delta:
            id, name, given = said.calls[-1]
            said.calls[-1] = (id, name, given + delta["partial_json"])
    return said


def _responses(parts: Any, streamed: bool) -> Heard:
    items = parts[-1]["response"]["output"] if streamed else parts["output"]
    return Heard(calls=[(item["call_id"], item["name"], "") for item in items if "call_id" in item], items=items)

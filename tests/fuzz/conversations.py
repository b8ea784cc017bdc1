"""Conversations in the words of real clients: what each asks, and what it keeps of an answer for its next request.

mini (chat, whole answers), qwen (chat, streamed, parts, its reasoning trimmed), claude (messages, moving cache marks, all results in
one user message), codex (responses, namespaced and custom tools, no instructions).
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import orjson

Json = dict[str, Any]

PATHS = {"chat": "/v1/chat/completions", "messages": "/v1/messages", "responses": "/v1/responses"}
TASKS = ("Fix the failing test.", "Schreibe ein Skript, das rechnet.", "list the files \U0001f600", "run `make`\n\n  ", "")
CLIENTS = (
    ("mini", "chat"),
    ("qwen", "chat"),
    ("claude", "messages"),
    ("claude", "messages"),
    ("codex", "responses"),
    ("codex", "responses"),
)
RESULTS = ("ok\n", "", "error: no such file\n", "line\n" * 40, "\x1b[31mred\x1b[0m", "<tool_response>nested</tool_response>")


@dataclass
class Heard:
    """What a client understood of an answer."""

    text: str = ""
    reasoning: str = ""
    calls: list[tuple[str, str, str]] = field(default_factory=list)
    """(id, name, arguments)"""
    items: list[Json] = field(default_factory=list)
    """Of the responses dialect: the output as it came."""


@dataclass
class Talk:
    """One client's conversation with one key."""

    client: str
    dialect: str
    rng: random.Random
    items: list[Json] = field(default_factory=list)
    turns: int = 0

    def __post_init__(self) -> None:
        self._say(self.rng.choice(TASKS))

    def body(self) -> Json:
        """The next request, as this client words it."""
        return _BODIES[self.client](self)

    def take(self, heard: Heard) -> None:
        """Go on from an answer: its tools are run, or the user says something."""
        self.turns += 1
        _TAKES[self.dialect](self, heard)
        if not heard.calls:
            self._say(self.rng.choice(TASKS) or "go on")

    def result(self) -> str:
        return self.rng.choice(RESULTS)

    def _say(self, text: str) -> None:
        if self.client == "qwen":
            self.items.append({"role": "user", "content": [{"type": "text", "text": text}]})
        elif self.client == "claude":
            self.items.append({"role": "user", "content": [{"type": "text", "text": text or "go"}]})
        elif self.client == "codex":
            self.items.append({"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]})
        else:
            self.items.append({"role": "user", "content": text})


def new_talk(rng: random.Random) -> Talk:
    """A conversation of a client drawn at random; the three dialects are as likely."""
    client, dialect = rng.choice(CLIENTS)
    return Talk(client, dialect, rng)


def _schema(*names: str) -> Json:
    return {
        "type": "object",
        "properties": {name: {"type": "string", "description": name} for name in names},
        "required": [*names],
    }


def _function(name: str, *names: str) -> Json:
    return {"name": name, "description": f"Does {name}.", "parameters": _schema(*names)}


def _mini(talk: Talk) -> Json:
    tools = [{"type": "function", "function": _function("bash", "command")}]
    system = {"role": "system", "content": "You are a helpful assistant that can interact with a computer."}
    return {"model": "policy", "messages": [system, *talk.items], "tools": tools}


def _qwen(talk: Talk) -> Json:
    names = ("read_file", "write_file", "run_shell_command", "todo_write", "grep_search")
    tools = [{"type": "function", "function": _function(name, "path", "text")} for name in names]
    system = {"role": "system", "content": [{"type": "text", "text": "You are Qwen Code.\n" + "Rules. " * 60}]}
    more = {"max_tokens": 8000, "stream": True, "stream_options": {"include_usage": True}}
    return {"model": "policy", "messages": [system, *talk.items], "tools": tools, **more}


def _claude(talk: Talk) -> Json:
    items = orjson.loads(orjson.dumps(talk.items))
    last = items[-1].get("content")
    if isinstance(last, list) and last and isinstance(last[-1], dict):
        last[-1]["cache_control"] = {"type": "ephemeral"}
    billing = f"x-anthropic-billing-header: cc_version=2.1.197; cch={talk.rng.randrange(99999)};"
    system = [
        {"type": "text", "text": billing},
        {"type": "text", "text": "You are Claude Code.", "cache_control": {"type": "ephemeral"}},
    ]
    names = ("Bash", "Read", "Write", "Edit", "Task", "Grep")
    tools = [{"name": name, "description": f"{name} it", "input_schema": _schema("command", "file_path")} for name in names]
    more = {
        "thinking": {"type": "enabled", "budget_tokens": 31999},
        "metadata": {"user_id": "u"},
        "output_config": {"effort": "high"},
    }
    return {"model": "policy", "max_tokens": 32000, "stream": True, "system": system, "messages": items, "tools": tools, **more}


def _codex(talk: Talk) -> Json:
    developer = {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "# Permissions\nsandboxed"}]}
    tools = [
        {"type": "function", "strict": False, **_function("exec_command", "cmd", "workdir")},
        {
            "type": "custom",
            "name": "apply_patch",
            "description": "Patch",
            "format": {"type": "grammar", "syntax": "lark", "definition": "s"},
        },
        {"type": "namespace", "name": "agents", "tools": [{"type": "function", **_function("spawn", "message")}]},
        {"type": "web_search"},
    ]
    more = {"include": ["reasoning.encrypted_content"], "store": False, "prompt_cache_key": "k", "parallel_tool_calls": True}
    return {"model": "policy", "input": [developer, *talk.items], "tools": tools, "stream": True, "tool_choice": "auto", **more}


_BODIES: dict[str, Callable[[Talk], Json]] = {"mini": _mini, "qwen": _qwen, "claude": _claude, "codex": _codex}


def _take_chat(talk: Talk, heard: Heard) -> None:
    message: Json = {"role": "assistant", "content": heard.text or None}
    if heard.reasoning:
        message["reasoning_content"] = heard.reasoning.strip() if talk.client == "qwen" else heard.reasoning
    if heard.calls:
        message["tool_calls"] = [
            {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}
            for id, name, arguments in heard.calls
        ]
    talk.items.append(message)
    talk.items += [{"role": "tool", "tool_call_id": id, "content": talk.result()} for id, _, _ in heard.calls]


def _given(text: str) -> Any:
    """A tool's input as the client keeps it; what it cannot write again, as it wraps what it cannot read."""
    try:
        value = orjson.loads(text)
        orjson.dumps({"messages": [{"content": [{"input": {"more": value}}]}]})
    except (orjson.JSONDecodeError, orjson.JSONEncodeError):
        return {"__unparsedToolInput": {"raw": text}}
    return value


def _take_messages(talk: Talk, heard: Heard) -> None:
    blocks: list[Json] = []
    if heard.reasoning:
        blocks.append({"type": "thinking", "thinking": heard.reasoning, "signature": ""})
    if heard.text.strip():
        blocks.append({"type": "text", "text": heard.text})
    blocks += [{"type": "tool_use", "id": id, "name": name, "input": _given(given)} for id, name, given in heard.calls]
    if blocks:
        talk.items.append({"role": "assistant", "content": blocks})
    if heard.calls:
        results = [{"type": "tool_result", "tool_use_id": id, "content": talk.result()} for id, _, _ in heard.calls]
        talk.items.append({"role": "user", "content": results})


def _take_responses(talk: Talk, heard: Heard) -> None:
    for item in heard.items:
        talk.items.append({**item, "content": None} if item.get("type") == "reasoning" else item)
    for item in heard.items:
        if item.get("type") in ("function_call", "custom_tool_call"):
            talk.items.append({"type": f"{item['type']}_output", "call_id": item["call_id"], "output": talk.result()})


_TAKES: dict[str, Callable[[Talk, Heard], None]] = {"chat": _take_chat, "messages": _take_messages, "responses": _take_responses}

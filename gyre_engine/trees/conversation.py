"""Conversations: which recorded call an incoming history goes on from, told without looking at a token.

A history is a chain of hashes over canonical messages. What a harness rewrites in a turn that was sampled here does not count:
reasoning that is dropped, moved or trimmed, the names and arguments of its tool calls (their ids stand for them). In other
assistants' turns (examples, another execution's) they count; blanks around a text count in neither. A nonce line in a system
text is taken off where a request is read (`steady`). What it means counts: roles, texts, tool-call ids, tool results, the
offered tools. The chain after each recorded answer names the call that gave it, so the longest known chain gives the parent.

promises  one hash a message and request; the same history gives the same chain in every process
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum


class Author(StrEnum):
    """Who a message is from."""

    SYSTEM = "system"
    USER = "user"
    ASSISTANT = "assistant"
    TOOL = "tool"


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A tool call of an assistant message. `id`: on the wire, unique in an execution; `arguments`: the text as it stands."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Message:
    """One message in the form that all dialects are parsed to."""

    author: Author
    text: str = ""
    reasoning: str = ""
    calls: tuple[ToolCall, ...] = ()
    """Of an assistant: the tools it asks for."""
    answers: str = ""
    """Of a tool: the id of the call that it answers."""
    name: str = ""


_THINKING = re.compile(r"^\s*<think>.*?</think>", re.DOTALL)
_NONCE = re.compile(r"^x-anthropic-billing-header:.*(?:\n|$)", re.MULTILINE)


def canonical(message: Message) -> bytes:
    """What identifies a message, as bytes; of an assistant's turn, what no harness rewrites. A long history is mostly this:
    one concatenation and one encoding a message."""
    author, text = message.author, message.text
    if author is Author.USER:
        whole = f"user {len(text)} {text}"
    elif author is Author.TOOL:
        whole = f"tool {len(text)} {text}{message.answers}"
    elif author is Author.ASSISTANT:
        said = (_THINKING.sub("", text, count=1) if "<think>" in text else text).strip()
        whole = "\0".join([f"assistant {len(said)} {said}", *[call.id for call in message.calls]])
    else:
        whole = f"system {text}"
    return whole.encode("utf-8", "replace")


def rewritable(message: Message) -> bytes:
    """What else an assistant's turn says, which a harness may rewrite; empty where `canonical` is all of it."""
    thinking = message.text if "<think>" in message.text else ""
    if not (message.calls or message.reasoning or thinking):
        return b""
    parts = [thinking, message.reasoning, *[part for call in message.calls for part in (call.id, call.name, call.arguments)]]
    return "".join([f"{len(part)} {part}" for part in parts]).encode("utf-8", "replace")


def steady(system_text: str) -> str:
    """A system text without the line that some harnesses change at every call."""
    return _NONCE.sub("", system_text) if "x-anthropic-billing-header" in system_text else system_text


def link(chain: bytes, message: Message) -> bytes:
    """The chain of a history that goes on with `message`, which was sampled here or is no assistant's."""
    return _hash(chain, canonical(message))


def begin(tools: bytes) -> bytes:
    """Where every chain with these tools begins; `tools`: the offered tools as bytes that do not depend on the order of keys."""
    return _hash(tools)


def _hash(head: bytes, more: bytes = b"") -> bytes:
    digest = hashlib.blake2b(head, digest_size=16)
    digest.update(more)
    return digest.digest()


@dataclass(frozen=True, slots=True)
class Anchor:
    """The answer that a history goes on from: `call` gave message `index`, and `index + 1` begins what is new."""

    call: str
    index: int


@dataclass(slots=True)
class Conversation:
    """The answers of one execution by chain, and the tool calls in them by wire id. Memory: ~200 bytes an answer and a tool call."""

    answers: dict[bytes, str] = field(default_factory=dict)
    tool_calls: dict[str, tuple[str, int]] = field(default_factory=dict)
    """wire id -> (call, which of its tool calls)"""

    def learn(self, call: str, chain: bytes, wire_ids: Sequence[str]) -> None:
        """A recorded answer. Where two siblings answered alike, the later one is meant from then on."""
        self.answers[chain] = call
        for index, wire_id in enumerate(wire_ids):
            self.tool_calls[wire_id] = (call, index)

    def links(self, chain: bytes, messages: Sequence[Message]) -> list[bytes]:
        """The chain after each message that follows what `chain` stands for."""
        found = []
        for message in messages:
            chain = link(chain, message)
            if message.author is Author.ASSISTANT and self._origin(chain, message) is None and (more := rewritable(message)):
                chain = _hash(chain, more)
            found.append(chain)
        return found

    def anchor(self, messages: Sequence[Message], chains: Sequence[bytes]) -> Anchor | None:
        """The last message that is a recorded answer with exactly this history before it."""
        for index in range(len(messages) - 1, -1, -1):
            if messages[index].author is Author.ASSISTANT and chains[index] in self.answers:
                return Anchor(self.answers[chains[index]], index)
        return None

    def sampled(self, messages: Sequence[Message], chains: Sequence[bytes]) -> dict[int, str]:
        """Which messages were sampled here, by call: known by their whole history, or by their tool calls where that was rewritten."""
        found: dict[int, str] = {}
        for index, message in enumerate(messages):
            if message.author is Author.ASSISTANT:
                call = self._origin(chains[index], message)
                if call is not None:
                    found[index] = call
        return found

    def _origin(self, chain: bytes, message: Message) -> str | None:
        """The call that gave a turn, `chain` after it."""
        return self.answers.get(chain) or self._by_tool_calls(message)

    def _by_tool_calls(self, message: Message) -> str | None:
        origins = {self.tool_calls.get(call.id, ("", 0))[0] for call in message.calls}
        return origins.pop() or None if len(origins) == 1 else None


def wire_id(call: str, index: int) -> str:
    """The id of a tool call on the wire: unique in an execution, whatever id the model wrote, and the same after a restart."""
    return f"call_{call[:24]}_{index}"

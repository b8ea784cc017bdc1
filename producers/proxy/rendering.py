"""Messages to token ids and back, by a renderer of the `renderers` library; what was sampled is never encoded again.

A bridge extends a sampled path byte for byte. Formats that drop earlier thinking once a user speaks are bridged there too as
long as there is none to drop. Where the template cannot be extended (it drops earlier thinking once a
user speaks, a history was rewritten), the history is rendered anew, and each turn that was sampled here gets its
sampled ids back in place.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from renderers import create_renderer
from renderers.configs import CustomRendererConfig, config_from_name
from renderers.custom import load_custom_renderer

from gyre_engine.events.calls import InputSpan, Provenance
from gyre_engine.trees.conversation import Author, Message, ToolCall, wire_id
from producers.proxy.tokens import ChatTokenizer

TAIL = 512
"""How many of a prompt's last tokens a bridge and a parser are shown; they look for the last header in it."""
_READ_THE_TAIL_ONLY = frozenset({"qwen3", "qwen3.5", "qwen3.6", "qwen3.8", "prime-qwen3"})
"""Renderers whose bridge was compared on tails and on whole prompts; the others are shown the whole prompt."""
_ENCODE_THEMSELVES = frozenset({"gpt-oss"})
"""Renderers with an encoder of their own, so that the tokenizer does not see what they encode."""

_PROVENANCE = {
    "system": Provenance.SYSTEM,
    "user": Provenance.USER,
    "tool": Provenance.TOOL,
    "assistant": Provenance.ASSISTANT,
}


@dataclass(frozen=True, slots=True)
class Rendered:
    """ids: token ids. spans: who wrote them, ascending. head: how many tokens the first message takes (with the tools)."""

    ids: list[int]
    spans: tuple[InputSpan, ...]
    head: int


@dataclass(frozen=True, slots=True)
class WrittenCall:
    """A tool call as the model wrote it: `arguments` is the text between its braces as sampled, valid JSON or not."""

    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Parsed:
    """What a completion says."""

    text: str
    reasoning: str
    calls: tuple[WrittenCall, ...]

    def tool_calls(self, call: str) -> tuple[ToolCall, ...]:
        """The tool calls as they go over the wire, where this is what `call` said."""
        return tuple(ToolCall(wire_id(call, at), written.name, written.arguments) for at, written in enumerate(self.calls))


_RENDERERS = {
    "qwen3": "qwen3",
    "qwen3_moe": "qwen3",
    "qwen3_5": "qwen3.5",
    "qwen3_5_moe": "qwen3.5",
    "qwen3_5_text": "qwen3.5",
    "glm4_moe": "glm-4.5",
    "kimi_k2": "kimi-k2",
    "deepseek_v3": "deepseek-v3",
    "gpt_oss": "gpt-oss",
    "minimax_m2": "minimax-m2",
    "llama": "llama-3",
}
"""By the `model_type` of config.json: the chat format of the family's instruction models."""


class UnknownRenderer(ValueError):
    """No renderer is known for the model; the text says how to name one."""


def renderer_of(folder: Path) -> str:
    """The renderer for a Hugging Face folder, by its config.json. Raises UnknownRenderer."""
    file = folder / "config.json"
    kind = json.loads(file.read_text()).get("model_type") if file.is_file() else None
    if kind not in _RENDERERS:
        known = ", ".join(sorted(_RENDERERS))
        text = f"no renderer is known for model_type {kind!r} (known: {known}): set model.renderer to a name of `renderers`"
        raise UnknownRenderer(f"{file}: {text}")
    return _RENDERERS[kind]


def config_of(name: str) -> Any:
    """The config of a renderer of the library, or of a class of one's own, MODULE:CLASS. Raises UnknownRenderer."""
    if ":" not in name:
        return config_from_name(name)
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        load_custom_renderer(name)
    except Exception as error:  # somebody's module: whatever it raises is theirs to see, in one line
        raise UnknownRenderer(f"{name} is no renderer that can be used: {type(error).__name__}: {error}") from error
    return CustomRendererConfig(import_path=name)


class Rendering:
    """The chat format of one model."""

    def __init__(self, tokenizer: ChatTokenizer, renderer_name: str, options: Mapping[str, Any] | None = None) -> None:
        config = config_of(renderer_name)
        if config is not None and options:
            config = type(config).model_validate({**config.model_dump(exclude_unset=True), **options})
        self.tokenizer = tokenizer
        self.renderer: Any = create_renderer(tokenizer, config)
        self._keeps_all: Any = _keeping(tokenizer, config, self.renderer)
        self.stop_ids: tuple[int, ...] = tuple(self.renderer.get_stop_token_ids())
        self.encodes_itself = renderer_name in _ENCODE_THEMSELVES
        self.tail = TAIL if renderer_name in _READ_THE_TAIL_ONLY else None
        self.think_open = tokenizer.convert_tokens_to_ids("<think>")
        self.think_close = tokenizer.convert_tokens_to_ids("</think>")
        self.tool_open = tokenizer.convert_tokens_to_ids("<tool_call>") if self.tail else None
        self.thinking: tuple[int, ...] = tuple(id for id in (self.think_open, self.think_close) if id is not None)

    def bridge(
        self, prompt: list[int], output: list[int], new: Sequence[Message], tools: list[dict[str, Any]], *, thinks: bool
    ) -> Rendered | None:
        """The ids that `new` adds after a sampled turn, or None where the format cannot go on from it.

        prompt: the last tokens of that turn's prompt. thinks: whether its path holds any thinking.
        """
        renderer = self.renderer if thinks or self._keeps_all is None else self._keeps_all
        found = renderer.bridge_to_next_turn(prompt, output, self._dicts(new), tools=tools or None)
        known = len(prompt) + len(output)
        if found is None or found.token_ids[:known] != prompt + output:
            return None
        owners = found.message_indices[known:]
        return Rendered(found.token_ids[known:], _spans(owners, new), head=0)

    def render(self, messages: Sequence[Message], tools: list[dict[str, Any]], sampled: Mapping[int, list[int]]) -> Rendered:
        """The whole prompt. sampled: by message, the ids that were sampled for it, which are put back."""
        found = self.renderer.render(self._dicts(messages), tools=tools or None, add_generation_prompt=True)
        ids, owners = found.token_ids, found.message_indices
        if sampled and found.sampled_mask:
            ids, owners = self._put_back(ids, owners, found.sampled_mask, sampled)
        first = max((i + 1 for i, owner in enumerate(owners) if owner == 0), default=0)
        return Rendered(ids, _spans(owners, messages), first)

    def parse(self, prompt_tail: list[int], output: list[int], tools: list[dict[str, Any]]) -> Parsed:
        """What sampled ids say. A tool call that is no valid JSON keeps its text, so that the harness can say so to the model."""
        try:
            return self._parsed(prompt_tail, output, tools)
        except (ValueError, RecursionError):
            return self._unparsed(prompt_tail, output)

    def _parsed(self, prompt_tail: list[int], output: list[int], tools: list[dict[str, Any]]) -> Parsed:
        found = self.renderer.parse_response(output, tools=tools or None, prompt_ids=prompt_tail or None)
        calls, text = [], found.content or ""
        for attempt in found.tool_calls:
            asked = _asked(attempt)
            if asked is None:
                text += f"<tool_call>\n{attempt.raw}"
            else:
                calls.append(asked)
        return Parsed(_whole(text), _whole(found.reasoning_content or ""), tuple(calls))

    def _unparsed(self, prompt_tail: list[int], output: list[int]) -> Parsed:
        """What no parser of JSON takes (numbers of thousands of digits, nesting without end): each call as its text reads."""
        at = output.index(self.tool_open) if self.tool_open in output else None
        if at is None:
            return Parsed(self.tokenizer.decode([id for id in output if id not in self.stop_ids]), "", ())
        found = self.renderer.parse_response(output[:at], prompt_ids=prompt_tail or None)
        blocks = self.tokenizer.decode([id for id in output[at:] if id not in self.stop_ids]).split("<tool_call>")[1:]
        calls = [_by_text(block.partition("</tool_call>")[0]) for block in blocks]
        text = "".join(f"<tool_call>{block}" for block, asked in zip(blocks, calls, strict=True) if asked is None)
        return Parsed((found.content or "") + text, found.reasoning_content or "", tuple(asked for asked in calls if asked))

    def _put_back(
        self, ids: list[int], owners: list[int], mask: list[bool], sampled: Mapping[int, list[int]]
    ) -> tuple[list[int], list[int]]:
        out_ids: list[int] = []
        out_owners: list[int] = []
        runs = _bodies(owners, mask)
        bodies = Counter(owner for owner, start, _ in runs if mask[start])
        for owner, start, end in runs:
            body = ids[start:end]
            if owner in sampled and mask[start] and bodies[owner] == 1:
                body = self._as_sampled(body, sampled[owner])
            out_ids += body
            out_owners += [owner] * len(body)
        return out_ids, out_owners

    def _as_sampled(self, rendered: list[int], sampled: list[int]) -> list[int]:
        """A rendered turn with its sampled ids: whole, or what follows the thinking where the template keeps only that."""
        close = rendered[-1:] if rendered and rendered[-1] in self.stop_ids else []
        whole = sampled if sampled[-1:] == close or (sampled and sampled[-1] in self.stop_ids) else sampled + close
        thinks, shows = self.think_close in sampled, self.think_close in rendered
        if self.think_open in sampled and not thinks:
            return rendered
        if thinks == shows:
            return whole
        if thinks:
            return whole[self._after_thinking(whole) :]
        return rendered[: self._after_thinking(rendered)] + whole

    def _dicts(self, messages: Sequence[Message]) -> list[dict[str, Any]]:
        return [_dict(message, self._text(message)) for message in messages]

    def _text(self, message: Message) -> str:
        """Control tokens that a text quotes stay text. In a system text, and in turns that were not sampled here, markers of
        thinking and tools count: they are how such texts speak of them."""
        return self.tokenizer.guarded(message.text, special_only=message.author in (Author.SYSTEM, Author.ASSISTANT))

    def _after_thinking(self, ids: list[int]) -> int:
        at = ids.index(self.think_close) + 1
        while at < len(ids) and not self.tokenizer.bytes_of(ids[at]).strip():
            at += 1
        return at


def _keeping(tokenizer: ChatTokenizer, config: Any, renderer: Any) -> Any:
    """The same format, but keeping all thinking: what bridges a user's turn where there is none; None where that is no different."""
    if (
        getattr(renderer, "effective_thinking_retention", None) != "tool_cycle"
        or tokenizer.convert_tokens_to_ids("</think>") is None
    ):
        return None
    keeping = {**(config or renderer.config).model_dump(exclude_unset=True), "thinking_retention": "all"}
    return create_renderer(tokenizer, type(config or renderer.config).model_validate(keeping))


def _bodies(owners: list[int], mask: list[bool]) -> list[tuple[int, int, int]]:
    """Runs of tokens with the same owner and the same mask: (owner, start, end)."""
    runs, start = [], 0
    for at in range(1, len(owners) + 1):
        if at == len(owners) or owners[at] != owners[start] or mask[at] != mask[start]:
            runs.append((owners[start], start, at))
            start = at
    return runs


def _spans(owners: Sequence[int], messages: Sequence[Message]) -> tuple[InputSpan, ...]:
    """Provenance by token. What the template writes between messages counts as the system's."""
    spans: list[InputSpan] = []
    previous: int | None = None
    for at, owner in enumerate(owners):
        if owner == previous:
            continue
        previous = owner
        author = messages[owner].author if 0 <= owner < len(messages) else Author.SYSTEM
        provenance = _PROVENANCE[author.value]
        if not spans or spans[-1].provenance is not provenance:
            spans.append(InputSpan(at, provenance))
    return tuple(spans)


def _dict(message: Message, text: str) -> dict[str, Any]:
    found: dict[str, Any] = {"role": message.author.value, "content": text}
    if message.reasoning:
        found["reasoning_content"] = message.reasoning
    if message.calls:
        found["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in message.calls
        ]
    if message.answers:
        found["tool_call_id"] = message.answers
    if message.name:
        found["name"] = message.name
    return found


_ARGUMENTS = re.compile(r'"arguments"\s*:\s*')
_NAME = re.compile(r'"name"\s*:\s*"((?:[^"\\]|\\.)*)"')


def _asked(attempt: Any) -> WrittenCall | None:
    """A parse attempt as a tool call, or None where not even a name can be read."""
    if attempt.name and isinstance(attempt.name, str) and str(attempt.status) == "ok":
        return WrittenCall(_whole(attempt.name), _whole(_as_written(attempt.raw, attempt.arguments)))
    return _by_text(attempt.raw)


def _by_text(raw: str) -> WrittenCall | None:
    """A call that is no valid JSON, by what stands where its name and its arguments stand."""
    name, arguments = _NAME.search(raw), _ARGUMENTS.search(raw)
    if name is None or arguments is None:
        return None
    rest = raw[arguments.end() :].rstrip()
    return WrittenCall(name.group(1), rest[:-1] if rest.endswith("}") else rest)


def _whole(text: str) -> str:
    """A text that can be written: half a character, which JSON's escapes can spell, becomes U+FFFD."""
    return text if text.isascii() else text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def _as_written(raw: str, arguments: Any) -> str:
    """The arguments' text as sampled where it can be found in `raw`, else as compact JSON."""
    if isinstance(arguments, str):
        return arguments
    for match in _ARGUMENTS.finditer(raw):
        try:
            value, end = json.JSONDecoder().raw_decode(raw, match.end())
            if value == arguments:
                return raw[match.end() : end]
        except (ValueError, RecursionError):
            continue
    return json.dumps({} if arguments is None else arguments, ensure_ascii=False)

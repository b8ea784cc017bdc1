"""SmolLM2's chat format as a renderer of one's own: `model.renderer = "examples.smollm2.chat:ChatMl"`.

A turn is `<|im_start|>ROLE\\nTEXT<|im_end|>\\n`, nothing else; where no system message is given, the model's own stands first. The
model knows no tool calls, so tools are refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Final

from renderers import BaseRendererConfig, ParsedResponse, RenderedTokens, reject_assistant_in_extension, trim_to_turn_close

SYSTEM: Final = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
"""What the model was trained to read where there is no other system message."""

ROLES: Final = ("system", "user", "assistant")

Turn = dict[str, Any]


class ChatMlConfig(BaseRendererConfig):  # type: ignore[misc]
    """Nothing can be set."""


class _Line:
    """Ids as they are put one behind the other, and whose they are."""

    def __init__(self) -> None:
        self.ids: list[int] = []
        self.owners: list[int] = []
        self.sampled: list[bool] = []

    def add(self, ids: Sequence[int], owner: int, *, sampled: bool = False) -> None:
        self.ids += ids
        self.owners += [owner] * len(ids)
        self.sampled += [sampled] * len(ids)


class ChatMl:
    """Messages to ids and back."""

    config_class: ClassVar[type[BaseRendererConfig]] = ChatMlConfig
    is_prefix_stable = True

    def __init__(self, tokenizer: Any, config: ChatMlConfig | None = None) -> None:
        self.config = config or ChatMlConfig()
        self._tokenizer = tokenizer
        self._open, self._close, self._end = (self._id(t) for t in ("<|im_start|>", "<|im_end|>", "<|endoftext|>"))

    def render(
        self, messages: Sequence[Turn], *, tools: Sequence[Any] | None = None, add_generation_prompt: bool = False
    ) -> RenderedTokens:
        """The whole conversation."""
        self._refuse(tools)
        line = _Line()
        if not messages or messages[0]["role"] != "system":
            self._turn(line, {"role": "system", "content": SYSTEM}, -1)
        for index, message in enumerate(messages):
            self._turn(line, message, index)
        if add_generation_prompt:
            self._header(line)
        return self._rendered(line, messages)

    def render_ids(
        self, messages: Sequence[Turn], *, tools: Sequence[Any] | None = None, add_generation_prompt: bool = False
    ) -> list[int]:
        """Its ids alone."""
        ids: list[int] = self.render(messages, tools=tools, add_generation_prompt=add_generation_prompt).token_ids
        return ids

    def bridge_to_next_turn(
        self, previous_prompt_ids: list[int], previous_completion_ids: list[int], new_messages: Sequence[Turn],
        *, tools: Sequence[Any] | None = None,
    ) -> RenderedTokens | None:  # fmt: skip
        """What was sampled, byte for byte, and the turns that follow it; None where they hold one of the assistant's."""
        self._refuse(tools)
        if not previous_prompt_ids or not new_messages or reject_assistant_in_extension(list(new_messages)):
            return None
        ends = {self._close, self._end}
        known = trim_to_turn_close(previous_prompt_ids, previous_completion_ids, ends, synthesize_close=self._close)
        line = _Line()
        line.add(known or (), -1)
        line.add(self._encode("\n"), -1)
        for index, message in enumerate(new_messages):
            self._turn(line, message, index)
        self._header(line)
        return self._rendered(line, new_messages)

    def parse_response(
        self, token_ids: Sequence[int], *, tools: Sequence[Any] | None = None, prompt_ids: Sequence[int] | None = None
    ) -> ParsedResponse:
        """All that was said, without the token that ends a turn."""
        self._refuse(tools)
        ends = [at for at, token in enumerate(token_ids) if token in (self._close, self._end)]
        said = token_ids[: ends[0]] if ends else token_ids
        return ParsedResponse(content=self._tokenizer.decode(list(said), skip_special_tokens=False))

    def get_stop_token_ids(self) -> list[int]:
        """What ends a turn."""
        return [self._close, self._end]

    def _turn(self, line: _Line, message: Turn, owner: int) -> None:
        """Role and text are encoded together, as the template's text would be; what a model said begins behind its header."""
        role, text = str(message["role"]), str(message.get("content") or "")
        if role not in ROLES:
            raise ValueError(f"SmolLM2's chat format has no turns of {role!r}: {', '.join(ROLES)}")
        said = role == "assistant"
        line.add([self._open], owner)
        line.add(self._encode(f"{role}\n" if said else f"{role}\n{text}"), owner)
        line.add([*self._encode(text if said else ""), self._close], owner, sampled=said)
        line.add(self._encode("\n"), owner)

    def _header(self, line: _Line) -> None:
        line.add([self._open, *self._encode("assistant\n")], -1)

    def _rendered(self, line: _Line, messages: Sequence[Turn]) -> RenderedTokens:
        roles = [str(message["role"]) for message in messages]
        return RenderedTokens(token_ids=line.ids, message_indices=line.owners, sampled_mask=line.sampled, message_roles=roles)

    def _refuse(self, tools: Sequence[Any] | None) -> None:
        if tools:
            raise ValueError("SmolLM2's chat format has no tools: set harness.tools = [] and harness.answer")

    def _encode(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=False)) if text else []

    def _id(self, token: str) -> int:
        found = self._tokenizer.convert_tokens_to_ids(token)
        if found is None:
            raise ValueError(f"the tokenizer has no token {token!r}: it is not one of SmolLM2's family")
        return int(found)

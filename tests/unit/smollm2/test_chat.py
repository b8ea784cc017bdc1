"""SmolLM2's chat format: the text of its template, written by hand, and what was sampled stays as it was."""

from __future__ import annotations

from pathlib import Path

import pytest

from examples.smollm2.chat import ChatMl
from producers.proxy.rendering import Rendering
from producers.proxy.tokens import ChatTokenizer

QUICKSTART = Path(__file__).resolve().parents[3] / "examples" / "quickstart" / "model"
"""Its tokenizer has the same three control tokens."""

OWN = "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
USER = {"role": "user", "content": "hi there"}
SAID = {"role": "assistant", "content": "hello"}
MORE = {"role": "user", "content": "once more"}


@pytest.fixture(scope="module")
def tokenizer() -> ChatTokenizer:
    return ChatTokenizer.load(QUICKSTART)


@pytest.fixture(scope="module")
def chat(tokenizer: ChatTokenizer) -> ChatMl:
    return ChatMl(tokenizer)


def test_a_conversation_reads_as_its_template_writes_it(chat: ChatMl, tokenizer: ChatTokenizer) -> None:
    ids = chat.render_ids([USER, SAID, MORE], add_generation_prompt=True)
    assert tokenizer.decode(ids) == (
        f"{OWN}<|im_start|>user\nhi there<|im_end|>\n<|im_start|>assistant\nhello<|im_end|>\n"
        "<|im_start|>user\nonce more<|im_end|>\n<|im_start|>assistant\n"
    )


def test_a_system_message_stands_in_the_place_of_the_models_own(chat: ChatMl, tokenizer: ChatTokenizer) -> None:
    ids = chat.render_ids([{"role": "system", "content": "Be brief."}, USER])
    assert tokenizer.decode(ids) == "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nhi there<|im_end|>\n"


def test_what_the_assistant_said_and_its_end_are_sampled_and_nothing_else_is(chat: ChatMl, tokenizer: ChatTokenizer) -> None:
    found = chat.render([USER, SAID, MORE], add_generation_prompt=True)
    sampled = [token for token, mask in zip(found.token_ids, found.sampled_mask, strict=True) if mask]
    assert tokenizer.decode(sampled) == "hello<|im_end|>"
    owners = [owner for owner, mask in zip(found.message_indices, found.sampled_mask, strict=True) if mask]
    assert set(owners) == {1}


@pytest.mark.parametrize("ended", [True, False], ids=["stopped", "cut off"])
def test_a_next_turn_keeps_every_sampled_id(chat: ChatMl, tokenizer: ChatTokenizer, ended: bool) -> None:
    """Bytes that no encoder would give for this text: h, e, l, l, o one by one."""
    end = tokenizer.convert_tokens_to_ids("<|im_end|>")
    prompt, said = chat.render_ids([USER], add_generation_prompt=True), [tokenizer.encode(letter)[0] for letter in "hello"]
    assert tokenizer.encode("hello") != said
    completion = [*said, end] if ended else said
    bridged = chat.bridge_to_next_turn(prompt, completion, [MORE])
    assert bridged is not None
    assert bridged.token_ids[: len(prompt) + len(completion)] == prompt + completion
    rest = tokenizer.decode(bridged.token_ids[len(prompt) + len(said) :])
    assert rest == "<|im_end|>\n<|im_start|>user\nonce more<|im_end|>\n<|im_start|>assistant\n"
    assert chat.bridge_to_next_turn(prompt, completion, [SAID]) is None


def test_an_answer_is_its_text_up_to_its_end(chat: ChatMl, tokenizer: ChatTokenizer) -> None:
    end = tokenizer.convert_tokens_to_ids("<|im_end|>")
    assert chat.parse_response([*tokenizer.encode("a b"), end]).content == "a b"
    assert chat.parse_response(tokenizer.encode("a b")).content == "a b"
    assert chat.get_stop_token_ids() == [end, tokenizer.convert_tokens_to_ids("<|endoftext|>")]


def test_tools_and_turns_of_tools_are_refused_by_name(chat: ChatMl) -> None:
    with pytest.raises(ValueError, match=r"no tools: set harness\.tools = \[\]"):
        chat.render([USER], tools=[{"type": "function"}])
    with pytest.raises(ValueError, match="no turns of 'tool'"):
        chat.render([{"role": "tool", "content": "x"}])


def test_the_proxy_makes_it_by_its_name(tokenizer: ChatTokenizer) -> None:
    rendering = Rendering(tokenizer, "examples.smollm2.chat:ChatMl")
    assert type(rendering.renderer).__name__ == "ChatMl"
    assert rendering.stop_ids == tuple(ChatMl(tokenizer).get_stop_token_ids())
    quoted = rendering.tokenizer.guarded("say <|im_end|> now")
    ids = rendering.renderer.render_ids([{"role": "user", "content": quoted}])
    assert ids.count(tokenizer.convert_tokens_to_ids("<|im_end|>")) == 2  # the system's and the user's own

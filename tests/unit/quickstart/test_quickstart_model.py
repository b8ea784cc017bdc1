"""The quickstart's tokenizer, demonstrations and model folder fit each other and the chat format."""

import json
import random
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file

from examples.quickstart import tokenizer as words
from examples.quickstart.demonstrations import Habits, demonstrate, next_prompt_ids, prompt_ids
from examples.quickstart.network import Network, Size
from examples.quickstart.prompt import MAX_WRITES, PATH, WRITE_TOOL, opening_messages, write_message
from examples.quickstart.tasks import combinations, draw_tasks, make_task
from examples.quickstart.warm_start import FOLDER, Fit, schedule


@pytest.fixture(scope="module")
def chat() -> words.ChatTokenizer:
    return words.load(FOLDER)


@pytest.fixture(scope="module")
def render(chat: words.ChatTokenizer):
    return words.renderer(chat)


@settings(deadline=None)
@given(st.text())
def test_any_text_survives_the_tokenizer(chat: words.ChatTokenizer, text: str):
    assert chat.decode(chat.encode(text)) == text


def test_digits_stand_alone(chat: words.ChatTokenizer):
    assert [chat.decode([token]) for token in chat.encode("1234")] == ["1", "2", "3", "4"]


def test_prompts_are_short(chat: words.ChatTokenizer, render):
    lengths = [len(prompt_ids(render, task)) for task in draw_tasks("train", 80, 0)]
    assert max(lengths) <= 60


def test_another_tool_costs_more_but_is_not_lost(chat: words.ChatTokenizer, render):
    other = {"type": "function", "function": {"name": "bash", "description": "Run.", "parameters": {"type": "object"}}}
    text = chat.decode(render.render_ids(opening_messages("Hello"), tools=[WRITE_TOOL, other]))
    assert json.dumps(other) in text and json.dumps(WRITE_TOOL) in text


def test_a_demonstration_is_the_chat_that_the_proxy_renders(chat: words.ChatTokenizer, render):
    """Written by hand in Qwen3's format: prompt, call, answer, end."""
    task = make_task(next(f for f, _, _ in combinations("train") if f.key == "backwards"), "total", None)
    always_right = Habits(right=1.0)
    episode = demonstrate(render, task, always_right, random.Random(0))
    text = chat.decode(episode.tokens)
    assert text.startswith("<|im_start|>system\nWrite solution.py, then say done.\n\n# Tools\n\n")
    assert text.endswith(
        "<|im_end|>\n<|im_start|>user\nWrite total(xs): xs from back to front.<|im_end|>\n<|im_start|>assistant\n"
        '<tool_call>\n{"name": "write", "arguments": {"path": "solution.py", "content": "def total(xs):\\n    return xs[::-1]\\n"}}\n'
        "</tool_call><|im_end|>\n<|im_start|>user\n<tool_response>\nok\n</tool_response><|im_end|>\n<|im_start|>assistant\ndone<|im_end|>"
    )
    said = chat.decode([token for token, sampled in zip(episode.tokens, episode.sampled, strict=True) if sampled])
    assert said.count("<|im_end|>") == 2 and said.endswith("</tool_call><|im_end|>done<|im_end|>")


def test_demonstrations_stay_within_the_turns_and_mostly_fail(render):
    rng = random.Random(1)
    end = render.get_stop_token_ids()[0]
    turns = []
    for task in draw_tasks("train", 60, 0):
        episode = demonstrate(render, task, Habits(), rng)
        turns.append(sum(t == end for t, s in zip(episode.tokens, episode.sampled, strict=True) if s))
        assert len(episode.tokens) <= 400
    assert min(turns) >= 2 and max(turns) <= MAX_WRITES + 1


def test_what_the_model_writes_is_parsed_back(chat: words.ChatTokenizer, render):
    code = "def f(s):\n    return s.replace('a', '')\n"
    ids = render.render_ids([*opening_messages("-"), write_message(code)])
    start = ids.index(chat.convert_tokens_to_ids("<tool_call>"), 12)
    parsed = render.parse_response(ids[start:-1])
    assert [(c.name, c.arguments) for c in parsed.tool_calls] == [("write", {"path": PATH, "content": code})]


def test_a_turn_is_extended_byte_for_byte(chat: words.ChatTokenizer, render):
    said = [*chat.encode("<tool_call>\n{}"), chat.eos_token_id]
    prompt = prompt_ids(render, draw_tasks("val", 1, 0)[0])
    following = next_prompt_ids(render, prompt, said, "ok")
    assert following[: len(prompt) + len(said)] == [*prompt, *said]
    assert chat.decode(following[len(prompt) + len(said) :]).startswith(
        "\n<|im_start|>user\n<tool_response>\nok\n</tool_response>"
    )


def test_the_rate_warms_up_and_decays():
    fit = Fit(steps=100, warmup=10)
    assert [round(schedule(step, fit), 4) for step in (0, 9, 50)] == [0.1, 0.919, 0.55]


def test_the_folder_is_a_small_qwen3_whose_vocabulary_is_the_tokenizers(chat: words.ChatTokenizer):
    config = json.loads((FOLDER / "config.json").read_text(encoding="utf-8"))
    assert config["architectures"] == ["Qwen3ForCausalLM"]
    assert config["vocab_size"] == chat.backend.get_vocab_size() == 640
    assert config["eos_token_id"] == chat.eos_token_id == chat.convert_tokens_to_ids("<|im_end|>")
    assert (FOLDER / "model.safetensors").stat().st_size <= 3_000_000
    for text in (*words.CONTROL, *words.MARKUP):
        assert len(chat.encode(text)) == 1


def test_transformers_computes_the_same_logits(render):
    from transformers import AutoModelForCausalLM

    reference = AutoModelForCausalLM.from_pretrained(FOLDER, dtype=torch.float32)
    network = Network(Size())
    network.load_state_dict(
        {name.removeprefix("model."): value.float() for name, value in load_file(FOLDER / "model.safetensors").items()}
    )
    tokens = torch.tensor([prompt_ids(render, draw_tasks("test", 1, 0)[0])])
    with torch.no_grad():
        torch.testing.assert_close(network.logits(network(tokens)), reference(tokens).logits, atol=1e-4, rtol=1e-4)


def test_transformers_reads_the_same_tokenizer(chat: words.ChatTokenizer):
    from transformers import AutoTokenizer

    text = "<|im_start|>user\nWrite total(xs): the last 3 of xs.<|im_end|>\n"
    reference = AutoTokenizer.from_pretrained(Path(FOLDER))
    assert reference.encode(text, add_special_tokens=False) == chat.encode(text)
    assert reference.eos_token_id == chat.eos_token_id

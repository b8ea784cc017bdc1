"""SmolLM2's converted folder against what transformers and gguf themselves make of the package's file, and Gyre's engine on it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from examples.smollm2.chat import SYSTEM, ChatMl
from examples.smollm2.weights import FILE, gguf_file, make
from gyre_engine.sampling.native.engine import NativeEngine
from gyre_engine.sampling.port import GenerateRequest, SamplingParams
from producers.proxy.tokens import ChatTokenizer

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default")]

TEXT = "<|im_start|>user\nName 3 fruits, please.<|im_end|>\n<|im_start|>assistant\n1. Apple\n2. Pear\n3. Fig<|im_end|>"
TALK = [
    {"role": "user", "content": "What is 12 + 30?  Say it\n\n  twice."},
    {"role": "assistant", "content": "42 42"},
    {"role": "user", "content": "Ünd 7\tmore?"},
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = tmp_path_factory.mktemp("smollm2") / "model"
    make(path, gguf_file())
    return path


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> ChatTokenizer:
    return ChatTokenizer.load(folder)


@pytest.fixture(scope="module")
def theirs() -> Iterator[Any]:
    """The model as transformers reads it from the GGUF file."""
    import torch
    from transformers import AutoModelForCausalLM

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield AutoModelForCausalLM.from_pretrained(gguf_file().parent, gguf_file=FILE, dtype=torch.float32).eval()  # type: ignore[no-untyped-call]
    torch.set_num_threads(threads)


def logprobs(model: Any, ids: list[int]) -> list[float]:
    import torch

    with torch.inference_mode():
        rows = model(torch.tensor([ids])).logits[0, :-1].log_softmax(dim=-1)
    found: list[float] = rows.gather(1, torch.tensor(ids[1:])[:, None])[:, 0].tolist()
    return found


def test_the_folder_scores_as_transformers_scores_the_file(folder: Path, theirs: Any, tokenizer: ChatTokenizer) -> None:
    from transformers import AutoModelForCausalLM

    ids = tokenizer.encode(TEXT)
    ours = AutoModelForCausalLM.from_pretrained(folder).eval()  # type: ignore[no-untyped-call]
    assert logprobs(ours, ids) == pytest.approx(logprobs(theirs, ids), abs=1e-4)


async def test_the_engine_scores_as_transformers_and_ends_its_turn(folder: Path, theirs: Any, tokenizer: ChatTokenizer) -> None:
    engine = NativeEngine(folder, "v0", max_batch=2, max_context=256, kv_capacity=512)
    try:
        ids = tokenizer.encode(TEXT)
        assert await engine.score(ids) == pytest.approx(logprobs(theirs, ids), abs=1e-4)
        chat = ChatMl(tokenizer)
        asked = chat.render_ids([{"role": "user", "content": "What is the capital of France?"}], add_generation_prompt=True)
        params = SamplingParams(temperature=0.0, max_tokens=48, stop_token_ids=tuple(chat.get_stop_token_ids()))
        said = [id async for chunk in engine.generate(GenerateRequest("r", asked, params)) for id in chunk.output_ids]
    finally:
        await engine.close()
    assert "Paris" in chat.parse_response(said).content
    assert said[-1] == tokenizer.convert_tokens_to_ids("<|im_end|>")


def test_the_config_says_what_the_file_says(folder: Path) -> None:
    from gguf import GGUFReader

    said = GGUFReader(gguf_file()).fields
    config = json.loads((folder / "config.json").read_text())
    assert config["rope_parameters"] == {"rope_type": "default", "rope_theta": said["llama.rope.freq_base"].contents()}
    assert config["num_hidden_layers"] == said["llama.block_count"].contents()
    assert config["rms_norm_eps"] == pytest.approx(said["llama.attention.layer_norm_rms_epsilon"].contents())
    assert config["tie_word_embeddings"] is True and "quantization_config" not in config


def test_a_matrix_is_that_of_the_file(folder: Path) -> None:
    import numpy as np
    from gguf import GGUFReader, dequantize
    from safetensors import safe_open

    (tensor,) = (t for t in GGUFReader(gguf_file()).tensors if t.name == "blk.7.ffn_down.weight")
    with safe_open(folder / "model.safetensors", framework="np") as file:
        ours = file.get_tensor("model.layers.7.mlp.down_proj.weight")
    np.testing.assert_array_equal(ours, dequantize(tensor.data, tensor.tensor_type))


def test_text_is_cut_at_every_digit_and_nothing_is_lost(tokenizer: ChatTokenizer) -> None:
    """As the file asks for (tokenizer.ggml.pre = smollm): two blanks before a digit are one piece, as at the end of a text."""
    assert tokenizer.encode("a  12") == [*tokenizer.encode("a  "), *tokenizer.encode("1"), *tokenizer.encode("2")]
    text = "x = 3.14\n\n  Ünïcode 你好 don't  2024"
    assert tokenizer.decode(tokenizer.encode(text)) == text


@pytest.mark.parametrize("system", [None, "Be brief."], ids=["own", "given"])
def test_the_renderer_writes_what_the_models_template_writes(folder: Path, tokenizer: ChatTokenizer, system: str | None) -> None:
    """transformers runs the Jinja template that the file holds."""
    from transformers import AutoTokenizer

    talk = TALK if system is None else [{"role": "system", "content": system}, *TALK]
    text = AutoTokenizer.from_pretrained(folder).apply_chat_template(talk, tokenize=False, add_generation_prompt=True)
    assert tokenizer.decode(ChatMl(tokenizer).render_ids(talk, add_generation_prompt=True)) == text
    assert ChatMl(tokenizer).render_ids(talk, add_generation_prompt=True) == tokenizer.encode(text)
    assert (SYSTEM in text) is (system is None)

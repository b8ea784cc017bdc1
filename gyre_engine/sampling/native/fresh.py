"""Model folders from nothing: a config and seeded random weights, to warm-start a small policy, to test and to measure."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors.torch import save_file

from gyre_engine.sampling.native.shape import ModelShape

_CLASSES = {"qwen3_moe": "Qwen3MoeForCausalLM"}

QUICKSTART = ModelShape(
    architecture="qwen3",
    vocab=648,
    hidden=160,
    layers=4,
    heads=5,
    kv_heads=1,
    head_dim=32,
    ffn=448,
    norm_eps=1e-6,
    rope_theta=1e6,
    max_context=4096,
    tied=True,
    qk_norm=True,
    qkv_bias=False,
)


def write_fresh_model(folder: Path, shape: ModelShape, *, seed: int, spread: float = 0.02) -> Path:
    """Write config.json and model.safetensors (fp32): matrices normal with deviation `spread`, norms one plus noise. The folder."""
    generator = torch.Generator().manual_seed(seed)
    tensors = {
        name: torch.randn(size, generator=generator) * spread + (1.0 if name.endswith("norm.weight") else 0.0)
        for name, size in _sizes(shape)
    }
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config_of(shape), indent=2))
    return folder


def config_of(shape: ModelShape) -> dict[str, object]:
    """What transformers and SGLang need to build the same model."""
    return {
        "architectures": [_CLASSES.get(shape.architecture, f"{shape.architecture.capitalize()}ForCausalLM")],
        "model_type": shape.architecture,
        "vocab_size": shape.vocab,
        "hidden_size": shape.hidden,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "intermediate_size": shape.ffn,
        "rms_norm_eps": shape.norm_eps,
        "rope_theta": shape.rope_theta,
        "rope_parameters": {"rope_type": "default", "rope_theta": shape.rope_theta},
        "max_position_embeddings": shape.max_context,
        "tie_word_embeddings": shape.tied,
        "attention_bias": shape.qkv_bias,
        "hidden_act": "silu",
        "dtype": "float32",
        **_config_of(shape),
    }


def _config_of(shape: ModelShape) -> dict[str, object]:
    """What a mixture of experts needs besides."""
    experts = shape.experts
    if experts is None:
        return {}
    return {
        "num_experts": experts.count,
        "num_experts_per_tok": experts.chosen,
        "moe_intermediate_size": experts.ffn,
        "norm_topk_prob": experts.normed,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [layer for layer in range(shape.layers) if layer not in experts.layers],
    }


def _sizes(shape: ModelShape) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Names and sizes as Hugging Face has them."""
    yield "model.embed_tokens.weight", (shape.vocab, shape.hidden)
    for layer in range(shape.layers):
        for name, size in _layer_sizes(shape, layer):
            yield f"model.layers.{layer}.{name}", size
    yield "model.norm.weight", (shape.hidden,)
    if not shape.tied:
        yield "lm_head.weight", (shape.vocab, shape.hidden)


def _layer_sizes(shape: ModelShape, layer: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    rows = {"q": shape.heads * shape.head_dim, "k": shape.kv_heads * shape.head_dim, "v": shape.kv_heads * shape.head_dim}
    for name, count in rows.items():
        yield f"self_attn.{name}_proj.weight", (count, shape.hidden)
        if shape.qkv_bias:
            yield f"self_attn.{name}_proj.bias", (count,)
    if shape.qk_norm:
        yield "self_attn.q_norm.weight", (shape.head_dim,)
        yield "self_attn.k_norm.weight", (shape.head_dim,)
    yield "self_attn.o_proj.weight", (shape.hidden, rows["q"])
    yield from _feed_forward_sizes(shape, layer)
    yield "input_layernorm.weight", (shape.hidden,)
    yield "post_attention_layernorm.weight", (shape.hidden,)


def _feed_forward_sizes(shape: ModelShape, layer: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    experts = shape.experts if shape.experts and layer in shape.experts.layers else None
    if experts:
        yield "mlp.gate.weight", (experts.count, shape.hidden)
    ffn = experts.ffn if experts else shape.ffn
    for name in [f"experts.{e}." for e in range(experts.count)] if experts else [""]:
        yield f"mlp.{name}gate_proj.weight", (ffn, shape.hidden)
        yield f"mlp.{name}up_proj.weight", (ffn, shape.hidden)
        yield f"mlp.{name}down_proj.weight", (shape.hidden, ffn)

"""Every tensor that a Hugging Face state of a shape holds, by name. Light: what checks a folder's headers imports no torch."""

from __future__ import annotations

from collections.abc import Iterator

from gyre_engine.training.model.shape import ModelShape

Sizes = Iterator[tuple[str, tuple[int, ...]]]


def hf_shapes(shape: ModelShape) -> dict[str, tuple[int, ...]]:
    """Name -> shape of the tensor."""
    found: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (shape.vocab, shape.hidden),
        "model.norm.weight": (shape.hidden,),
    }
    if not shape.tied:
        found["lm_head.weight"] = (shape.vocab, shape.hidden)
    for layer in range(shape.layers):
        inner = (*_attention(shape), *_feed_forward(shape, layer))
        found |= {f"model.layers.{layer}.{name}": size for name, size in inner}
    return found


def _attention(shape: ModelShape) -> Sizes:
    queries, keys = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    for part, rows in (("q", queries), ("k", keys), ("v", keys)):
        yield f"self_attn.{part}_proj.weight", (rows, shape.hidden)
        if shape.qkv_bias:
            yield f"self_attn.{part}_proj.bias", (rows,)
        if shape.qk_norm and part != "v":
            yield f"self_attn.{part}_norm.weight", (shape.head_dim,)
    yield "self_attn.o_proj.weight", (shape.hidden, queries)
    yield "input_layernorm.weight", (shape.hidden,)
    yield "post_attention_layernorm.weight", (shape.hidden,)


def _feed_forward(shape: ModelShape, layer: int) -> Sizes:
    """One gated network, or a router and each expert's."""
    if shape.experts is None or not shape.has_experts(layer):
        yield from _gated("mlp.", shape.ffn, shape.hidden)
        return
    yield "mlp.gate.weight", (shape.experts.count, shape.hidden)
    for expert in range(shape.experts.count):
        yield from _gated(f"mlp.experts.{expert}.", shape.experts.ffn, shape.hidden)


def _gated(name: str, ffn: int, hidden: int) -> Sizes:
    yield f"{name}gate_proj.weight", (ffn, hidden)
    yield f"{name}up_proj.weight", (ffn, hidden)
    yield f"{name}down_proj.weight", (hidden, ffn)

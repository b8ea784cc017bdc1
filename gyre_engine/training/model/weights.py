"""Hugging Face <-> Megatron weights for Qwen3, Qwen3-MoE, Qwen2 and Llama; every map is a permutation of rows, bit-exact."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import load, load_file, save
from torch import Tensor

from gyre_engine.training.model.flat import FlatParameters
from gyre_engine.training.model.hf_shapes import hf_shapes
from gyre_engine.training.model.shape import ModelShape
from gyre_engine.training.replica import TrainingError, Untrainable

_LAYER = {
    "self_attn.o_proj.weight": "self_attention.linear_proj.weight",
    "input_layernorm.weight": "input_layernorm.weight",
    "post_attention_layernorm.weight": "pre_mlp_layernorm.weight",
}
_ROUTER = {"mlp.gate.weight": "mlp.router.weight"}
_QK_NORM = {
    "self_attn.q_norm.weight": "self_attention.q_layernorm.weight",
    "self_attn.k_norm.weight": "self_attention.k_layernorm.weight",
}
_ENDS = {
    "model.embed_tokens.weight": "embedding.word_embeddings.weight",
    "model.norm.weight": "decoder.final_layernorm.weight",
}


def read_image(image: bytes | Path) -> dict[str, Tensor]:
    """Tensors of a safetensors image, or of a model folder (one file or shards). Raises TrainingError."""
    if isinstance(image, bytes):
        return load(image)
    files = sorted(image.glob("*.safetensors"))
    if not files:
        raise TrainingError(f"{image} holds no *.safetensors; save the model with safetensors")
    return {name: tensor for file in files for name, tensor in load_file(file).items()}


def fill(parameters: FlatParameters, state: Mapping[str, Tensor]) -> None:
    """Copy the tensors of a whole model into its flat weights. Raises Untrainable where one is of another shape."""
    for slot in parameters.layout:
        if (source := state[slot.name]).shape != slot.shape:
            raise Untrainable(f"{slot.name} has shape {tuple(source.shape)}, the model's config says {slot.shape}")
        slot.of(parameters.weights).copy_(source)


def image_of(parameters: FlatParameters, shape: ModelShape) -> bytes:
    """Flat weights of a whole model as a Hugging Face safetensors image, names sorted; fp32, of bf16 weights bf16."""
    slots = {slot.name: slot.of(parameters.weights) for slot in parameters.layout}
    state = {
        name: (tensor if tensor.dtype is torch.bfloat16 else tensor.float()).cpu().contiguous()
        for name, tensor in to_hf(slots, shape).items()
    }
    return save(state, metadata={"format": "pt"})


def to_megatron(hf: Mapping[str, Tensor], shape: ModelShape) -> dict[str, Tensor]:
    """Megatron's names and layouts (one tensor-parallel rank) of a Hugging Face state. Raises TrainingError."""
    _check_names(hf, shape)
    out = {theirs: hf[ours] for ours, theirs in _plain_names(shape).items()}
    for layer in range(shape.layers):
        source, target = f"model.layers.{layer}.", f"decoder.layers.{layer}."
        for kind in _qkv_kinds(shape):
            parts = [hf[f"{source}self_attn.{part}_proj.{kind}"] for part in "qkv"]
            out[f"{target}self_attention.linear_qkv.{kind}"] = _interleaved(parts, shape.kv_heads)
        for ours, theirs in _feed_forwards(shape, layer):
            gate, up = (hf[f"{source}{ours}{part}_proj.weight"] for part in ("gate", "up"))
            out[f"{target}{theirs}linear_fc1.weight"] = torch.cat([gate, up])
    return out


def to_hf(megatron: Mapping[str, Tensor], shape: ModelShape) -> dict[str, Tensor]:
    """The inverse of to_megatron, in the order of sorted names."""
    out = {ours: megatron[theirs] for ours, theirs in _plain_names(shape).items()}
    for layer in range(shape.layers):
        target, source = f"model.layers.{layer}.", f"decoder.layers.{layer}."
        for kind in _qkv_kinds(shape):
            parts = _separated(megatron[f"{source}self_attention.linear_qkv.{kind}"], shape)
            for part, tensor in zip("qkv", parts, strict=True):
                out[f"{target}self_attn.{part}_proj.{kind}"] = tensor
        for ours, theirs in _feed_forwards(shape, layer):
            gate, up = megatron[f"{source}{theirs}linear_fc1.weight"].chunk(2)
            out[f"{target}{ours}gate_proj.weight"], out[f"{target}{ours}up_proj.weight"] = gate, up
    return dict(sorted(out.items()))


def megatron_shapes(shape: ModelShape) -> dict[str, tuple[int, ...]]:
    """Every parameter of the whole model under Megatron's name."""
    heads, groups = shape.heads * shape.head_dim, 2 * shape.kv_heads * shape.head_dim
    layer: dict[str, tuple[int, ...]] = {
        "input_layernorm.weight": (shape.hidden,),
        "pre_mlp_layernorm.weight": (shape.hidden,),
        "self_attention.linear_qkv.weight": (heads + groups, shape.hidden),
        "self_attention.linear_proj.weight": (shape.hidden, heads),
    }
    layer |= dict.fromkeys(_QK_NORM.values(), (shape.head_dim,)) if shape.qk_norm else {}
    layer |= {"self_attention.linear_qkv.bias": (heads + groups,)} if shape.qkv_bias else {}
    ends: dict[str, tuple[int, ...]] = {
        "embedding.word_embeddings.weight": (shape.vocab, shape.hidden),
        "decoder.final_layernorm.weight": (shape.hidden,),
    }
    ends |= {} if shape.tied else {"output_layer.weight": (shape.vocab, shape.hidden)}
    return ends | {
        f"decoder.layers.{i}.{name}": size
        for i in range(shape.layers)
        for name, size in (layer | _inner_shapes(shape, i)).items()
    }


def _inner_shapes(shape: ModelShape, layer: int) -> dict[str, tuple[int, ...]]:
    """Of a layer's feed-forward part."""
    mixture = shape.experts if shape.has_experts(layer) else None
    ffn = mixture.ffn if mixture else shape.ffn
    sizes: dict[str, tuple[int, ...]] = {"mlp.router.weight": (mixture.count, shape.hidden)} if mixture else {}
    for _, theirs in _feed_forwards(shape, layer):
        sizes[f"{theirs}linear_fc1.weight"] = (2 * ffn, shape.hidden)
        sizes[f"{theirs}linear_fc2.weight"] = (shape.hidden, ffn)
    return sizes


def _feed_forwards(shape: ModelShape, layer: int) -> list[tuple[str, str]]:
    """What stands before the names of a layer's gated networks, in Hugging Face's and Megatron's: one, or each expert's."""
    if shape.experts is None or layer not in shape.experts.layers:
        return [("mlp.", "mlp.")]
    return [(f"mlp.experts.{e}.", f"mlp.experts.local_experts.{e}.") for e in range(shape.experts.count)]


def _plain_names(shape: ModelShape) -> dict[str, str]:
    """Hugging Face name -> Megatron name of what is stored alike."""
    layer = _LAYER | (_QK_NORM if shape.qk_norm else {})
    names = dict(_ENDS) if shape.tied else _ENDS | {"lm_head.weight": "output_layer.weight"}
    for index in range(shape.layers):
        inner = {f"{ours}down_proj.weight": f"{theirs}linear_fc2.weight" for ours, theirs in _feed_forwards(shape, index)}
        inner |= _ROUTER if shape.has_experts(index) else {}
        for ours, theirs in (layer | inner).items():
            names[f"model.layers.{index}.{ours}"] = f"decoder.layers.{index}.{theirs}"
    return names


def _check_names(hf: Mapping[str, Tensor], shape: ModelShape) -> None:
    expected = set(hf_shapes(shape))
    missing, extra = sorted(expected - set(hf)), sorted(set(hf) - expected - {"lm_head.weight"})
    if missing or extra:
        raise Untrainable(
            f"the image does not fit a {shape.family} of {shape.layers} layers: "
            f"missing {missing[:3]}, unexpected {extra[:3]}; is config.json of the same model?"
        )


def _qkv_kinds(shape: ModelShape) -> tuple[str, ...]:
    return ("weight", "bias") if shape.qkv_bias else ("weight",)


def _interleaved(parts: list[Tensor], groups: int) -> Tensor:
    """Megatron keeps each group's queries, key and value side by side."""
    grouped = [part.reshape(groups, part.size(0) // groups, *part.shape[1:]) for part in parts]
    return torch.cat(grouped, dim=1).flatten(0, 1)


def _separated(qkv: Tensor, shape: ModelShape) -> list[Tensor]:
    queries = shape.heads // shape.kv_heads * shape.head_dim
    grouped = qkv.reshape(shape.kv_heads, -1, *qkv.shape[1:])
    return [part.flatten(0, 1) for part in torch.split(grouped, [queries, shape.head_dim, shape.head_dim], dim=1)]

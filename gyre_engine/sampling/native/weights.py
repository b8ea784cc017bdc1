"""A model's weights in fp32, out of the safetensors files of a Hugging Face folder."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from gyre_engine.sampling.native.shape import ModelShape
from gyre_engine.sampling.port import WeightsUnreadable


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One layer. Matrices are [out, in], query, key and value stacked in this order, gate above up.

    qk_norm: [heads + kv_heads, head_dim], each head's norm weight, or None
    router:  [experts, hidden], or None; with it gate_up and down are [experts, out, in]
    """

    attention_norm: Tensor
    qkv: Tensor
    qkv_bias: Tensor | None
    qk_norm: Tensor | None
    out: Tensor
    ffn_norm: Tensor
    gate_up: Tensor
    down: Tensor
    router: Tensor | None = None


@dataclass(frozen=True, slots=True)
class Weights:
    """A whole model: embedding [vocab, hidden], layers, final norm [hidden], head [vocab, hidden]."""

    embedding: Tensor
    layers: tuple[LayerWeights, ...]
    norm: Tensor
    head: Tensor


def read_weights(folder: Path, shape: ModelShape) -> Weights:
    """Read and fuse. Raises WeightsUnreadable: a file is missing or torn, a tensor is missing or has another size."""
    named = _Named(folder, _tensors(folder))
    embedding = named.take("model.embed_tokens.weight", shape.vocab, shape.hidden)
    return Weights(
        embedding=embedding,
        layers=tuple(_layer(named, i, shape) for i in range(shape.layers)),
        norm=named.take("model.norm.weight", shape.hidden),
        head=embedding if shape.tied else named.take("lm_head.weight", shape.vocab, shape.hidden),
    )


class _Named:
    """Tensors by name, taken with a check of their size."""

    def __init__(self, folder: Path, tensors: dict[str, Tensor]) -> None:
        self._folder = folder
        self._tensors = tensors

    def take(self, name: str, *size: int) -> Tensor:
        tensor = self._tensors.get(name)
        if tensor is None or tuple(tensor.shape) != size:
            found = "missing" if tensor is None else f"{tuple(tensor.shape)}"
            raise WeightsUnreadable(f"{self._folder}: {name} is {found}, its config.json says {size}: export the model again")
        return tensor.float().contiguous()


def _tensors(folder: Path) -> dict[str, Tensor]:
    index = folder / "model.safetensors.index.json"
    try:
        names = sorted(set(json.loads(index.read_text())["weight_map"].values())) if index.exists() else ["model.safetensors"]
        tensors: dict[str, Tensor] = {}
        for name in names:
            with safe_open(folder / name, framework="pt") as file:
                tensors.update({key: file.get_tensor(key) for key in file.keys()})  # noqa: SIM118 (no mapping)
        return tensors
    except (OSError, ValueError, KeyError, SafetensorError) as error:
        raise WeightsUnreadable(f"the weights in {folder} cannot be read: {error}") from error


def _layer(named: _Named, number: int, shape: ModelShape) -> LayerWeights:
    at, hidden, dim = f"model.layers.{number}.", shape.hidden, shape.head_dim
    rows = {"q": shape.heads * dim, "k": shape.kv_heads * dim, "v": shape.kv_heads * dim}
    qkv = [named.take(f"{at}self_attn.{x}_proj.weight", n, hidden) for x, n in rows.items()]
    bias = [named.take(f"{at}self_attn.{x}_proj.bias", n) for x, n in rows.items()] if shape.qkv_bias else None
    gate_up, down, router = _feed_forward(named, number, shape)
    return LayerWeights(
        attention_norm=named.take(f"{at}input_layernorm.weight", hidden),
        qkv=torch.cat(qkv),
        qkv_bias=torch.cat(bias) if bias else None,
        qk_norm=_qk_norm(named, at, shape) if shape.qk_norm else None,
        out=named.take(f"{at}self_attn.o_proj.weight", hidden, shape.heads * dim),
        ffn_norm=named.take(f"{at}post_attention_layernorm.weight", hidden),
        gate_up=gate_up,
        down=down,
        router=router,
    )


def _feed_forward(named: _Named, number: int, shape: ModelShape) -> tuple[Tensor, Tensor, Tensor | None]:
    """gate_up, down and router."""
    at, experts = f"model.layers.{number}.mlp.", shape.experts
    if experts is None or number not in experts.layers:
        return *_gated(named, at, shape.hidden, shape.ffn), None
    every = [_gated(named, f"{at}experts.{e}.", shape.hidden, experts.ffn) for e in range(experts.count)]
    router = named.take(f"{at}gate.weight", experts.count, shape.hidden)
    return torch.stack([gate_up for gate_up, _ in every]), torch.stack([down for _, down in every]), router


def _gated(named: _Named, at: str, hidden: int, ffn: int) -> tuple[Tensor, Tensor]:
    gate_up = [named.take(f"{at}{x}_proj.weight", ffn, hidden) for x in ("gate", "up")]
    return torch.cat(gate_up), named.take(f"{at}down_proj.weight", hidden, ffn)


def _qk_norm(named: _Named, at: str, shape: ModelShape) -> Tensor:
    query = named.take(f"{at}self_attn.q_norm.weight", shape.head_dim).expand(shape.heads, -1)
    key = named.take(f"{at}self_attn.k_norm.weight", shape.head_dim).expand(shape.kv_heads, -1)
    return torch.cat([query, key])

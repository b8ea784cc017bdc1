"""The forward pass, fp32. Tensor names end in their shape: N tokens, H heads, D a head's size, E the hidden size, V the vocabulary."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from gyre_engine.sampling.native.shape import ModelShape
from gyre_engine.sampling.native.weights import LayerWeights, Weights

Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]
"""(layer, query [N, heads, D], key [N, kv_heads, D], value [N, kv_heads, D]) -> [N, heads * D]; keeps key and value."""


class Model:
    """Weights and RoPE tables. Which keys a token sees is the business of the `attend` that the caller passes."""

    def __init__(self, shape: ModelShape, weights: Weights, max_context: int) -> None:
        self.shape = shape
        self.weights = weights
        self._cos_PD, self._sin_PD = _rope_tables(shape, max_context)

    def hidden(self, ids_N: Tensor, positions_N: Tensor, attend: Attend) -> Tensor:
        """The final hidden states [N, E], normed."""
        cos_N1D = self._cos_PD[positions_N].unsqueeze(1)
        sin_N1D = self._sin_PD[positions_N].unsqueeze(1)
        x_NE = self.weights.embedding[ids_N]
        for number, layer in enumerate(self.weights.layers):
            x_NE = x_NE + self._attention(number, layer, x_NE, cos_N1D, sin_N1D, attend)
            x_NE = x_NE + self._feed_forward(layer, x_NE)
        return self._norm(x_NE, self.weights.norm)

    def logits(self, hidden_NE: Tensor) -> Tensor:
        """[N, V]"""
        return F.linear(hidden_NE, self.weights.head)

    def _norm(self, x: Tensor, weight: Tensor) -> Tensor:
        return F.rms_norm(x, weight.shape, weight, self.shape.norm_eps)

    def _attention(self, number: int, layer: LayerWeights, x_NE: Tensor, cos: Tensor, sin: Tensor, attend: Attend) -> Tensor:
        heads, kv_heads, dim = self.shape.heads, self.shape.kv_heads, self.shape.head_dim
        qkv = F.linear(self._norm(x_NE, layer.attention_norm), layer.qkv, layer.qkv_bias)
        qkv_NHD = qkv.view(-1, heads + 2 * kv_heads, dim)
        qk_NHD, value = qkv_NHD[:, : heads + kv_heads], qkv_NHD[:, heads + kv_heads :]
        if layer.qk_norm is not None:
            qk_NHD = F.rms_norm(qk_NHD, (dim,), None, self.shape.norm_eps) * layer.qk_norm
        qk_NHD = _rotate(qk_NHD, cos, sin)
        return F.linear(attend(number, qk_NHD[:, :heads], qk_NHD[:, heads:], value), layer.out)

    def _feed_forward(self, layer: LayerWeights, x_NE: Tensor) -> Tensor:
        gate, up = F.linear(self._norm(x_NE, layer.ffn_norm), layer.gate_up).chunk(2, dim=-1)
        return F.linear(F.silu(gate) * up, layer.down)


def _rotate(x_NHD: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """RoPE as Hugging Face lays it out: the halves of a head rotate against each other. `sin` carries the sign of the first half."""
    return x_NHD * cos + x_NHD.roll(x_NHD.shape[-1] // 2, dims=-1) * sin


def _rope_tables(shape: ModelShape, max_context: int) -> tuple[Tensor, Tensor]:
    exponents = torch.arange(0, shape.head_dim, 2, dtype=torch.float32) / shape.head_dim
    angles = torch.arange(max_context, dtype=torch.float32)[:, None] / (shape.rope_theta**exponents)
    cos, sin = angles.cos(), angles.sin()
    return torch.cat([cos, cos], dim=-1), torch.cat([-sin, sin], dim=-1)

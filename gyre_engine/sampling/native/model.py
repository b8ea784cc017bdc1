"""The forward pass, fp32. Tensor names end in their shape: N tokens, H heads, D a head's size, E the hidden size, V the vocabulary."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from gyre_engine.experts import Experts, Rows, unknown
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

    def hidden(self, ids_N: Tensor, positions_N: Tensor, attend: Attend) -> tuple[Tensor, Rows]:
        """The final hidden states [N, E], normed; a record of the experts that the tokens were routed to, if the model has any."""
        cos_N1D = self._cos_PD[positions_N].unsqueeze(1)
        sin_N1D = self._sin_PD[positions_N].unsqueeze(1)
        x_NE, routed = self.weights.embedding[ids_N], list[Tensor]()
        for number, layer in enumerate(self.weights.layers):
            x_NE = x_NE + self._attention(number, layer, x_NE, cos_N1D, sin_N1D, attend)
            x_NE = x_NE + self._feed_forward(layer, self._norm(x_NE, layer.ffn_norm), routed)
        return self._norm(x_NE, self.weights.norm), self._rows(routed, len(ids_N))

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

    def _feed_forward(self, layer: LayerWeights, x_NE: Tensor, routed: list[Tensor]) -> Tensor:
        if layer.router is None or self.shape.experts is None:
            return _gated(x_NE, layer.gate_up, layer.down)
        chosen_NK, weights_NK = _route(F.linear(x_NE, layer.router), self.shape.experts)
        routed.append(chosen_NK)
        y_NE = torch.zeros_like(x_NE)
        for expert in torch.unique(chosen_NK).tolist():
            rows, places = torch.where(chosen_NK == expert)
            answer = _gated(x_NE[rows], layer.gate_up[expert], layer.down[expert])
            y_NE.index_add_(0, rows, answer * weights_NK[rows, places, None])
        return y_NE

    def _rows(self, routed: list[Tensor], tokens: int) -> Rows:
        if self.shape.experts is None:
            return unknown(tokens, 0)
        return self.shape.experts.rows(np.stack([chosen.numpy() for chosen in routed], axis=1))


def _gated(x_NE: Tensor, gate_up: Tensor, down: Tensor) -> Tensor:
    gate, up = F.linear(x_NE, gate_up).chunk(2, dim=-1)
    return F.linear(F.silu(gate) * up, down)


def _route(logits: Tensor, experts: Experts) -> tuple[Tensor, Tensor]:
    """The likeliest experts of each token, int64[N, chosen], and what their answers count."""
    weights, chosen = logits.softmax(dim=-1).topk(experts.chosen, dim=-1)
    return chosen, weights / weights.sum(dim=-1, keepdim=True) if experts.normed else weights


def _rotate(x_NHD: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """RoPE as Hugging Face lays it out: the halves of a head rotate against each other. `sin` carries the sign of the first half."""
    return x_NHD * cos + x_NHD.roll(x_NHD.shape[-1] // 2, dims=-1) * sin


def _rope_tables(shape: ModelShape, max_context: int) -> tuple[Tensor, Tensor]:
    """Positions times rounded frequencies, as trainers have it: the same angles rounded otherwise are off by more at each position."""
    exponents = torch.arange(0, shape.head_dim, 2, dtype=torch.float32) / shape.head_dim
    angles = torch.arange(max_context, dtype=torch.float32)[:, None] * (1.0 / shape.rope_theta**exponents)
    cos, sin = angles.cos(), angles.sin()
    return torch.cat([cos, cos], dim=-1), torch.cat([-sin, sin], dim=-1)

"""The KV of the sequences that run: one slot a sequence, the decoding ones side by side at the front.

Slots 0..n-1 decode together, so that a step reads one contiguous view; slot n may be prefilling. Memory is reserved for every slot's
longest context, and used only where tokens were written.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from gyre_engine.sampling.native.model import Attend
from gyre_engine.sampling.native.shape import ModelShape


class Slots:
    """kv: float32[layers, 2, slots, kv_heads, context, head_dim]. Zeroed, since a masked key must still be a finite number."""

    def __init__(self, shape: ModelShape, slots: int, context: int) -> None:
        self.kv = torch.zeros(shape.layers, 2, slots, shape.kv_heads, context, shape.head_dim)
        self._group = shape.group

    def move(self, source: int, target: int, length: int) -> None:
        """Copy a sequence of `length` tokens to another slot."""
        self.kv[:, :, target, :, :length] = self.kv[:, :, source, :, :length]

    def of(self, slot: int) -> Tensor:
        """float32[layers, 2, kv_heads, context, head_dim], a view."""
        return self.kv[:, :, slot]

    def prefill(self, slot: int, start: int, end: int) -> Attend:
        """Attention for the tokens start..end-1 of one sequence, whose earlier tokens are in the slot."""
        mask = None if start == 0 else torch.ones(end - start, end, dtype=torch.bool).tril_(start)

        def attend(layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            keys, values = self.kv[layer, :, slot].unbind(0)
            keys[:, start:end] = key.transpose(0, 1)
            values[:, start:end] = value.transpose(0, 1)
            answer = F.scaled_dot_product_attention(
                query.transpose(0, 1).unsqueeze(0),
                keys[None, :, :end],
                values[None, :, :end],
                attn_mask=mask,
                is_causal=mask is None,
                enable_gqa=self._group > 1,
            )
            return answer[0].transpose(0, 1).reshape(end - start, -1)

        return attend

    def decode(self, lengths: Tensor) -> Attend:
        """Attention for one new token a slot. lengths: int64[n], tokens in slot i before the new one."""
        count, longest = len(lengths), int(lengths.max()) + 1
        rows = torch.arange(count)
        unseen = torch.arange(longest) > lengths[:, None]
        mask = torch.zeros(count, longest).masked_fill_(unseen, -torch.inf)[:, None, None]

        def attend(layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            keys, values = self.kv[layer].unbind(0)
            keys[rows, :, lengths] = key
            values[rows, :, lengths] = value
            # The query heads of a KV head stand in for query positions: one small product a KV head, no repeated keys.
            query = query.reshape(count, key.shape[1], self._group, -1)
            keys, values = keys[:count, :, :longest], values[:count, :, :longest]
            return F.scaled_dot_product_attention(query, keys, values, attn_mask=mask).reshape(count, -1)

        return attend

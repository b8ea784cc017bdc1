"""Ancestor attention: Megatron's core attention for packed trees.

The attention mask is `end`, int32[n] on the CPU: a plain tensor, so that activation recomputation can carry it. What each device's
kernels need is made of it once a pack and kept while the layers ask: ranges on the CPU (`chains`), a block mask on a GPU (`blocks`).
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from gyre_engine.training.model.blocks import block_attention
from gyre_engine.training.model.chains import chain_attention
from gyre_engine.training.model.megatron_core import MegatronModule
from gyre_engine.training.model.visibility import parts_of_bytes


class AncestorAttention(MegatronModule):  # type: ignore[misc]
    """Each row sees its ancestors and itself: key j is visible to query i iff j <= i < end[j]."""

    def __init__(self, config: Any, layer_number: int, *_: Any, softmax_scale: float | None = None, **__: Any) -> None:
        super().__init__(config=config)
        self.scale = float(config.kv_channels) ** -0.5 if softmax_scale is None else softmax_scale

    def forward(self, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor, **_: Any) -> Tensor:
        """query [n, 1, heads, d], key and value [n, 1, groups, d] -> [n, 1, heads * d]."""
        q, k, v = (tensor.permute(1, 2, 0, 3) for tensor in (query, key, value))
        end = attention_mask.numpy().tobytes()
        if q.device.type == "cpu":
            out = chain_attention(q, k, v, parts_of_bytes(end), self.scale)
        else:
            out = block_attention(q, k, v, end, self.scale)
        return out.permute(2, 0, 1, 3).flatten(2)

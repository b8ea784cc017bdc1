"""Ancestor attention: Megatron's core attention for packed trees.

The attention mask is `end`, int32[n] on the CPU: a plain tensor, so that activation recomputation can carry it.
On the CPU torch's fused kernel is as fast as blocked matrix products written by hand, and holds no probabilities.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from gyre_engine.training.megatron_core import MegatronModule
from gyre_engine.training.visibility import Span, spans_of_bytes


class AncestorAttention(MegatronModule):  # type: ignore[misc]
    """One scaled-dot-product attention a span: its queries against its ancestors and itself."""

    def __init__(self, config: Any, layer_number: int, *_: Any, softmax_scale: float | None = None, **__: Any) -> None:
        super().__init__(config=config)
        self.scale = float(config.kv_channels) ** -0.5 if softmax_scale is None else softmax_scale

    def forward(self, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor, **_: Any) -> Tensor:
        """query [n, 1, heads, d], key and value [n, 1, groups, d] -> [n, 1, heads * d]."""
        q, k, v = (tensor.permute(1, 2, 0, 3) for tensor in (query, key, value))
        spans = spans_of_bytes(attention_mask.numpy().tobytes())
        out = torch.cat([self._span(q, k, v, span) for span in spans], dim=2)
        return out.permute(2, 0, 1, 3).flatten(2)

    def _span(self, q: Tensor, k: Tensor, v: Tensor, span: Span) -> Tensor:
        ranges = [*span.ancestors, (span.start, span.stop)]
        return F.scaled_dot_product_attention(
            q[:, :, span.start : span.stop],
            _rows(k, ranges),
            _rows(v, ranges),
            attn_mask=_causal_tail(span, q.device) if span.prefix else None,
            is_causal=not span.prefix,
            scale=self.scale,
            enable_gqa=q.size(1) != k.size(1),
        )


def _rows(tensor: Tensor, ranges: list[tuple[int, int]]) -> Tensor:
    if len(ranges) == 2 and ranges[0][1] == ranges[1][0]:
        ranges = [(ranges[0][0], ranges[1][1])]
    parts = [tensor[:, :, start:stop] for start, stop in ranges]
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=2)


def _causal_tail(span: Span, device: torch.device) -> Tensor:
    size = span.stop - span.start
    return torch.ones(size, span.prefix + size, dtype=torch.bool, device=device).tril(span.prefix)

"""Attention of packed trees on the CPU: torch's fused kernel on views of the pack, merged by log-sum-exp.

No mask, no copy of a prefix, no probabilities: memory is that of queries, keys, values and their gradients. The backward pass
gives the kernel the merged output and log-sum-exp, which makes each part's gradients those of the whole softmax. Sums run in the
order of the parts, so equal inputs give equal bytes.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor

from gyre_engine.training.model.visibility import Part

_forward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default


def chain_attention(query: Tensor, key: Tensor, value: Tensor, parts: tuple[Part, ...], scale: float) -> Tensor:
    """query [1, heads, n, d], key and value [1, groups, n, d] -> [1, heads, n, d]; `parts` as of `visibility.parts`."""
    return cast(Tensor, _ChainAttention.apply(query, key, value, parts, scale))


class _ChainAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, parts: tuple[Part, ...], scale: float) -> Tensor:
        attend = _attended if len(parts) > 1 else _attended_causally
        out, normalizer = attend(query, key, value, parts, scale)
        ctx.save_for_backward(query, key, value, out, normalizer)
        ctx.parts, ctx.scale = parts, scale
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None]:
        query, key, value, out, normalizer = ctx.saved_tensors
        sums = tuple(_like(tensor, normalizer.dtype) for tensor in (query, key, value))
        for part in ctx.parts:
            rows, keys = _rows(part), _keys(part)
            found = _backward(
                gradients[0][rows], query[rows], key[keys], value[keys], out[rows], normalizer[rows], 0.0, part.causal,
                scale=ctx.scale,
            )  # fmt: skip
            for total, at, added in zip(sums, (rows, keys, keys), found, strict=True):
                _add(total[at], added, first=part.causal)
        of_query, of_key, of_value = (total.to(query.dtype) for total in sums)
        return of_query, of_key, of_value, None, None


def _attended_causally(query: Tensor, key: Tensor, value: Tensor, _: tuple[Part, ...], scale: float) -> tuple[Tensor, Tensor]:
    out, normalizer = _forward(query, key, value, 0.0, True, scale=scale)
    return out, normalizer


def _attended(query: Tensor, key: Tensor, value: Tensor, parts: tuple[Part, ...], scale: float) -> tuple[Tensor, Tensor]:
    """The output over all parts, and the logarithm of each row's normalizer; sums at the normalizer's precision."""
    wide = torch.promote_types(query.dtype, torch.float32)
    out, normalizer = _like(query, wide), _like(query[..., 0], wide)
    for part in parts:
        rows, keys = _rows(part), _keys(part)
        partial, partial_normalizer = _forward(query[rows], key[keys], value[keys], 0.0, part.causal, scale=scale)
        if part.causal:
            out[rows], normalizer[rows] = partial, partial_normalizer
        else:
            _merge(out[rows], normalizer[rows], partial.to(wide), partial_normalizer)
    return out.to(query.dtype), normalizer


def _merge(out: Tensor, normalizer: Tensor, partial: Tensor, partial_normalizer: Tensor) -> None:
    """Softmax over two sets of keys from the softmax over each: the second weighs z2 / (z1 + z2)."""
    out.lerp_(partial, torch.sigmoid(partial_normalizer - normalizer)[..., None])
    torch.logaddexp(normalizer, partial_normalizer, out=normalizer)


def _add(total: Tensor, found: Tensor, first: bool) -> None:
    """Causal parts come first and cover every row once."""
    if first:
        total.copy_(found)
    else:
        total.add_(found)


def _like(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """Empty, of the same sizes, with the rows outermost, as the pack has them."""
    heads, rows = tensor.shape[1:3]
    return torch.empty(1, rows, heads, *tensor.shape[3:], dtype=dtype, device=tensor.device).transpose(1, 2)


Slices = tuple[slice, slice, slice]


def _rows(part: Part) -> Slices:
    return slice(None), slice(None), slice(part.start, part.stop)


def _keys(part: Part) -> Slices:
    return slice(None), slice(None), slice(part.key_start, part.key_stop)

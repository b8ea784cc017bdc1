"""Attention of packed trees on a GPU: FlexAttention over a block mask that is made of `end`, block by block, never row by row.

A block of 128 rows sees a block of keys whole, in part or not at all; blocks not seen cost nothing. The kernel is compiled once a
model, for packs of any length; its sums run in one order.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, flex_attention

from gyre_engine.training.model.visibility import visible_blocks

BLOCK = 128


def block_attention(query: Tensor, key: Tensor, value: Tensor, end: bytes, scale: float) -> Tensor:
    """query [1, heads, n, d], key and value [1, groups, n, d] -> [1, heads, n, d]; `end`: the bytes of int32[n]."""
    mask = block_mask(end, query.device)
    attend = _compiled() if query.device.type == "cuda" else flex_attention
    out = attend(query, key, value, block_mask=mask, scale=scale, enable_gqa=query.size(1) != key.size(1))
    return cast(Tensor, out)


@lru_cache(maxsize=1)
def _compiled() -> Any:
    return torch.compile(flex_attention, dynamic=True)


@lru_cache(maxsize=8)
def block_mask(end: bytes, device: torch.device) -> BlockMask:
    """What the kernel walks. Kept, because every layer asks for the same."""
    ends = np.frombuffer(end, dtype=np.int32)
    partly, whole = visible_blocks(ends, BLOCK)
    last = torch.tensor(ends, device=device)

    def visible(batch: Tensor, head: Tensor, row: Tensor, key: Tensor) -> Tensor:
        return (key <= row) & (row < last[key])

    return BlockMask.from_kv_blocks(
        *_ordered(partly, device),
        *_ordered(whole, device),
        BLOCK_SIZE=BLOCK,
        mask_mod=visible,
        seq_lengths=(len(ends), len(ends)),
    )


def _ordered(blocks: NDArray[np.bool_], device: torch.device) -> tuple[Tensor, Tensor]:
    """How many blocks of keys each block of rows sees, and which: those first, as the kernel expects."""
    counts = blocks.sum(axis=1, dtype=np.int32)
    order = np.argsort(~blocks, axis=1, kind="stable").astype(np.int32)
    return torch.tensor(counts[None, None], device=device), torch.tensor(order[None, None], device=device)

"""FlexAttention of packed trees (gyre_engine.training.model.blocks) against the CPU's (chains): output and gradients, in fp32.

Trees of several shapes and lengths, grouped queries too, so that one compiled kernel meets packs of any length; then a tree of 65,536
tokens twice: the same bytes, and memory that grows with its tokens. The last line is one JSON object.
"""

from __future__ import annotations

import json
import time
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gyre_engine.training.model.blocks import block_attention
from gyre_engine.training.model.chains import chain_attention
from gyre_engine.training.model.visibility import parts

SCALE, WIDTH = 0.125, 64
BOUND = 1e-5
"""Relative, of sums over some thousand keys in fp32 in another order."""
LARGE = 65_536
BYTES_PER_TOKEN = 24 * 4 * WIDTH
"""Of one head: inputs, output, gradients and what the kernel holds; a square of scores would be 262,144."""

Ends = NDArray[np.int32]


def forest(lengths: list[int], parents: list[int]) -> Ends:
    """`end` of segments, depth-first."""
    starts = np.cumsum([0, *lengths])
    ends = starts[1:].copy()
    for index in range(len(lengths) - 1, -1, -1):
        if parents[index] >= 0:
            ends[parents[index]] = max(ends[parents[index]], ends[index])
    return np.repeat(ends, lengths).astype(np.int32)


TREES = {
    "path": forest([700], [-1]),
    "trunk and leaves": forest([1024, *[128] * 8], [-1, *[0] * 8]),
    "deep": forest([300, 77, 41, 260, 19, 500, 33], [-1, 0, 1, 1, 0, 4, 4]),
    "two executions": forest([129, 64, 3, 1000, 1, 127], [-1, 0, 0, -1, 3, 3]),
}


def given(rows: int, heads: int, groups: int) -> list[Tensor]:
    """Query, key, value and the gradient of the output."""
    generator = torch.Generator().manual_seed(rows)
    sizes = (heads, groups, groups, heads)
    return [torch.randn(rows, 1, count, WIDTH, generator=generator).permute(1, 2, 0, 3) for count in sizes]


def on_gpu(end: Ends, tensors: list[Tensor]) -> list[Tensor]:
    query, key, value, gradient = (t.detach().cuda() for t in tensors)
    leaves = [t.requires_grad_() for t in (query, key, value)]
    out = block_attention(query, key, value, end.tobytes(), SCALE)
    return [out, *torch.autograd.grad(out, leaves, gradient)]


def on_cpu(end: Ends, tensors: list[Tensor]) -> list[Tensor]:
    leaves = [t.detach().requires_grad_() for t in tensors[:3]]
    out = chain_attention(leaves[0], leaves[1], leaves[2], parts(end), SCALE)
    return [out, *torch.autograd.grad(out, leaves, tensors[3])]


def error(end: Ends, heads: int, groups: int) -> float:
    """The worst of output and three gradients, relative."""
    tensors = given(len(end), heads, groups)
    found, expected = on_gpu(end, tensors), on_cpu(end, tensors)
    return max(float((a.detach().cpu() - b.detach()).norm() / b.detach().norm()) for a, b in zip(found, expected, strict=True))


def large() -> dict[str, Any]:
    end = forest([LARGE - 8 * 2048, *[2048] * 8], [-1, *[0] * 8])
    tensors = given(LARGE, 1, 1)
    first = [t.detach().cpu() for t in on_gpu(end, tensors)]
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before, began = torch.cuda.memory_allocated(), time.perf_counter()
    second = on_gpu(end, tensors)
    torch.cuda.synchronize()
    seconds, peak = time.perf_counter() - began, torch.cuda.max_memory_allocated() - before
    same = all(torch.equal(a, b.detach().cpu()) for a, b in zip(first, second, strict=True))
    return {"same_bytes": same, "bytes_per_token": peak // LARGE, "seconds": round(seconds, 4)}


def main() -> int:
    if not torch.cuda.is_available():
        print(json.dumps({"ok": False, "why": "torch finds no CUDA device"}))
        return 1
    torch.use_deterministic_algorithms(True)
    errors = {
        f"{name}, {heads}/{groups}": error(end, heads, groups)
        for name, end in TREES.items()
        for heads, groups in ((4, 4), (9, 3))
    }
    found = large()
    ok = max(errors.values()) <= BOUND and found["same_bytes"] and found["bytes_per_token"] <= BYTES_PER_TOKEN
    print(json.dumps({"ok": ok, "device": torch.cuda.get_device_name(), "rel_error": errors, **found}))
    return 0 if ok else 1


if __name__ == "__main__":
    raise SystemExit(main())

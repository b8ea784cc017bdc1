"""Drawing ids. A request's random numbers depend on its seed, its rid and the output index, never on who else is in the batch."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gyre_engine.sampling.port import SamplingParams

UNIFORM_BITS = 48  # few enough that u * total < total also after rounding, so no id of probability 0 is drawn


def request_key(seed: int | None, rid: str) -> int:
    """64 bits that start a request's random numbers; fresh ones where no seed is given."""
    if seed is None:
        return secrets.randbits(64)
    return int.from_bytes(blake2b(f"{seed}:{rid}".encode(), digest_size=8).digest(), "little")


def uniforms(keys: NDArray[np.uint64], indices: NDArray[np.uint64]) -> NDArray[np.float64]:
    """One number in [0, 1) for each (request, output index): SplitMix64 (Steele et al. 2014), seeded by key, at step index + 1."""
    z = keys + (indices + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    z ^= z >> np.uint64(31)
    fractions: NDArray[np.float64] = (z >> np.uint64(64 - UNIFORM_BITS)).astype(np.float64) / 2.0**UNIFORM_BITS
    return fractions


@dataclass(frozen=True, slots=True)
class Plan:
    """How to sample the rows of a batch: float32[n, 1] temperature (1 if greedy), bool[n] greedy, top_k, top_p and min_p or None."""

    temperature: Tensor
    greedy: Tensor | None
    cut: tuple[Tensor, Tensor, Tensor] | None

    @classmethod
    def of(cls, params: Sequence[SamplingParams]) -> Plan:
        """Parameters that no row uses cost nothing."""
        greedy = [p.temperature == 0 for p in params]
        cut = any(p.top_k or p.top_p < 1 or p.min_p for p in params)
        return cls(
            temperature=torch.tensor([p.temperature or 1.0 for p in params])[:, None],
            greedy=torch.tensor(greedy) if any(greedy) else None,
            cut=_cuts(params) if cut else None,
        )


def _cuts(params: Sequence[SamplingParams]) -> tuple[Tensor, Tensor, Tensor]:
    whole = torch.iinfo(torch.int64).max
    return (
        torch.tensor([p.top_k or whole for p in params])[:, None],
        torch.tensor([p.top_p for p in params], dtype=torch.float64)[:, None],
        torch.tensor([p.min_p for p in params], dtype=torch.float64)[:, None],
    )


def sample(logits_NV: Tensor, plan: Plan, uniform_N: Tensor) -> tuple[Tensor, Tensor]:
    """Invert the cumulative distribution at `uniform` (float64[N]): int64[N] ids, float64[N] log-probabilities before any cut."""
    scaled_NV = logits_NV / plan.temperature
    scaled_NV -= scaled_NV.amax(dim=-1, keepdim=True)
    weights_NV = scaled_NV.exp()
    cumulative_NV = weights_NV.cumsum(dim=-1, dtype=torch.float64)
    totals_N1 = cumulative_NV[:, -1:]
    if plan.cut is not None:
        cumulative_NV = _truncate(weights_NV.double() / totals_N1, *plan.cut).cumsum(dim=-1)
    thresholds_N1 = uniform_N[:, None] * cumulative_NV[:, -1:]
    ids_N1 = torch.searchsorted(cumulative_NV, thresholds_N1, right=True)
    if plan.greedy is not None:
        ids_N1 = torch.where(plan.greedy[:, None], logits_NV.argmax(dim=-1, keepdim=True), ids_N1)
    logprobs_N1 = scaled_NV.gather(1, ids_N1).double() - totals_N1.log()
    return ids_N1[:, 0], logprobs_N1[:, 0]


def _truncate(weights_NV: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor) -> Tensor:
    """Zero what lies outside the top k, outside the smallest set of mass top_p, or below min_p of the likeliest."""
    ordered, order = weights_NV.sort(dim=-1, descending=True, stable=True)
    before = ordered.cumsum(dim=-1) - ordered
    rank = torch.arange(ordered.shape[-1])
    # The likeliest id has nothing before it, so it always stays.
    keep = (rank < top_k) & (before < top_p) & (ordered >= min_p * ordered[:, :1])
    return torch.zeros_like(weights_NV).scatter_(1, order, ordered * keep)

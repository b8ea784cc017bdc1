"""Log-probabilities of targets at the run's temperature, never holding all logits of a large vocabulary."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

LOGITS_AT_ONCE = 1 << 24  # 64 MiB of fp32; more are computed in parts, and again in the backward pass


def likelihoods(
    logits_of: Callable[[Tensor], Tensor], hidden: Tensor, tokens: Tensor, temperature: float, entropy: bool = False
) -> tuple[Tensor, float]:
    """hidden [m, h], the tokens int64[m] they predict -> log-probabilities [m], the summed entropy (0: not asked)."""
    if len(tokens) == 0:
        return hidden.sum(dim=-1), 0.0

    def part(rows: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor]:
        logits = logits_of(rows) / temperature
        normalizer = logits.logsumexp(dim=-1)
        chosen = logits.gather(1, wanted[:, None])[:, 0] - normalizer
        return chosen, _entropy(logits.detach(), normalizer.detach()) if entropy else normalizer.new_zeros(())

    size = _rows_at_once(logits_of, hidden)
    if len(tokens) <= size:
        chosen, total = part(hidden, tokens)
        return chosen, float(total)
    parts = [
        checkpoint(part, rows, wanted, use_reentrant=False)
        for rows, wanted in zip(torch.split(hidden, size), torch.split(tokens, size), strict=True)
    ]
    return torch.cat([chosen for chosen, _ in parts]), float(sum(total for _, total in parts))


def _rows_at_once(logits_of: Callable[[Tensor], Tensor], hidden: Tensor) -> int:
    with torch.no_grad():
        vocabulary = logits_of(hidden[:1]).size(-1)
    return max(1, LOGITS_AT_ONCE // vocabulary)


def _entropy(logits: Tensor, normalizer: Tensor) -> Tensor:
    logs = logits - normalizer[:, None]
    return -(logs.exp() * logs).sum()

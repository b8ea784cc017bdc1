"""Log-probabilities of targets at the run's temperature, never holding all logits of a large vocabulary."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from gyre_engine.training.vocabulary import VocabularyPart, chosen_of_parts, summed

LOGITS_AT_ONCE = 1 << 24  # 64 MiB of fp32; more are computed in parts, and again in the backward pass


def likelihoods(
    logits_of: Callable[[Tensor], Tensor],
    hidden: Tensor,
    tokens: Tensor,
    temperature: float,
    entropy: bool = False,
    words: VocabularyPart | None = None,
) -> tuple[Tensor, float]:
    """hidden [m, h], the tokens int64[m] they predict -> log-probabilities [m], the summed entropy (0: not asked).

    words: which logits `logits_of` gives, where the ranks of a cell share the vocabulary; every rank gets the same results.
    """
    if len(tokens) == 0:
        return hidden.sum(dim=-1), 0.0

    def part(rows: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor]:
        logits = logits_of(rows) / temperature
        chosen, normalizer = _chosen(logits, wanted) if words is None else chosen_of_parts(logits, wanted, words)
        return chosen, _entropy(logits.detach(), normalizer.detach()) if entropy else normalizer.new_zeros(())

    size = _rows_at_once(logits_of, hidden)
    if len(tokens) <= size:
        chosen, total = part(hidden, tokens)
        return chosen, _whole(total, words, entropy)
    parts = [
        checkpoint(part, rows, wanted, use_reentrant=False)
        for rows, wanted in zip(torch.split(hidden, size), torch.split(tokens, size), strict=True)
    ]
    return torch.cat([chosen for chosen, _ in parts]), _whole(sum(total for _, total in parts), words, entropy)


def _chosen(logits: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor]:
    normalizer = logits.logsumexp(dim=-1)
    return logits.gather(1, wanted[:, None])[:, 0] - normalizer, normalizer


def _rows_at_once(logits_of: Callable[[Tensor], Tensor], hidden: Tensor) -> int:
    with torch.no_grad():
        vocabulary = logits_of(hidden[:1]).size(-1)
    return max(1, LOGITS_AT_ONCE // vocabulary)


def _entropy(logits: Tensor, normalizer: Tensor) -> Tensor:
    logs = logits - normalizer[:, None]
    return -(logs.exp() * logs).sum()


def _whole(entropy: Tensor | int, words: VocabularyPart | None, asked: bool) -> float:
    return float(summed(entropy, words) if asked and words is not None and isinstance(entropy, Tensor) else entropy)

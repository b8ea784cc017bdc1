"""Log-probabilities and entropies of targets at the run's temperature, never holding all logits of a large vocabulary."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from gyre_engine.losses.config import Entropy
from gyre_engine.training.model.vocabulary import VocabularyPart, chosen_of_parts, entropies_of_parts

LOGITS_AT_ONCE = 1 << 24  # 64 MiB of fp32; more are computed in parts, and again in the backward pass


def likelihoods(
    logits_of: Callable[[Tensor], Tensor],
    hidden: Tensor,
    tokens: Tensor,
    temperature: float,
    entropy: Entropy = Entropy.NONE,
    words: VocabularyPart | None = None,
) -> tuple[Tensor, Tensor]:
    """hidden [m, h], the tokens int64[m] they predict -> log-probabilities [m], entropies [m] (empty: not asked).

    words: which logits `logits_of` gives, where the ranks of a cell share the vocabulary; every rank gets the same results.
    """
    if len(tokens) == 0:
        return hidden.sum(dim=-1), hidden.new_empty(0)

    def part(rows: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor]:
        logits = logits_of(rows) / temperature
        chosen, normalizer = _chosen(logits, wanted) if words is None else chosen_of_parts(logits, wanted, words)
        return chosen, _entropies(logits, normalizer, entropy, words)

    size = _rows_at_once(logits_of, hidden)
    if len(tokens) <= size:
        return part(hidden, tokens)
    parts = [
        checkpoint(part, rows, wanted, use_reentrant=False)
        for rows, wanted in zip(torch.split(hidden, size), torch.split(tokens, size), strict=True)
    ]
    return torch.cat([chosen for chosen, _ in parts]), torch.cat([spread for _, spread in parts])


def _chosen(logits: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor]:
    normalizer = logits.logsumexp(dim=-1)
    return logits.gather(1, wanted[:, None])[:, 0] - normalizer, normalizer


def _rows_at_once(logits_of: Callable[[Tensor], Tensor], hidden: Tensor) -> int:
    with torch.no_grad():
        vocabulary = logits_of(hidden[:1]).size(-1)
    return max(1, LOGITS_AT_ONCE // vocabulary)


def _entropies(logits: Tensor, normalizer: Tensor, use: Entropy, words: VocabularyPart | None) -> Tensor:
    """-sum p log p of each row; empty where it is not asked for."""
    if use is Entropy.NONE:
        return normalizer.new_empty(0)
    if use is Entropy.MEASURED:
        logits, normalizer = logits.detach(), normalizer.detach()
    if words is not None:
        return entropies_of_parts(logits, normalizer, words)
    logs = logits - normalizer[:, None]
    return -(logs.exp() * logs).sum(dim=-1)

"""Log-probabilities and entropies where the ranks of a cell share the vocabulary: each has the logits of its words, nobody all.

Megatron's own loss writes over the logits and measures no entropy; here they stay as they are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.distributed import ProcessGroup, ReduceOp, all_reduce


@dataclass(frozen=True, slots=True)
class VocabularyPart:
    """This rank's words are those from `first` on, as many as its logits have; the ranks of `group` have the others."""

    first: int
    group: ProcessGroup


def chosen_of_parts(logits: Tensor, wanted: Tensor, part: VocabularyPart) -> tuple[Tensor, Tensor]:
    """logits [m, words] of this rank, int64[m] wanted -> log-probabilities [m] and normalizers [m], the same on every rank."""
    chosen, normalizer = _Chosen.apply(logits, wanted, part)
    return chosen, normalizer


def entropies_of_parts(logits: Tensor, normalizer: Tensor, part: VocabularyPart) -> Tensor:
    """logits [m, words] of this rank and the normalizers [m] of all words -> entropies [m], the same on every rank.

    Differentiable by the logits; `normalizer` counts as a function of them.
    """
    found: Tensor = _Entropies.apply(logits, normalizer, part)
    return found


def summed(value: Tensor, part: VocabularyPart) -> Tensor:
    """The sum of the ranks' values, on every rank."""
    total = value.detach().clone()
    all_reduce(total, group=part.group)
    return total


class _Chosen(torch.autograd.Function):
    """d chosen / d logit = [wanted] - probability, for the words of this rank."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, wanted: Tensor, part: VocabularyPart) -> tuple[Tensor, Tensor]:
        largest = logits.amax(dim=-1)
        all_reduce(largest, op=ReduceOp.MAX, group=part.group)
        normalizer = largest + summed((logits - largest[:, None]).exp().sum(dim=-1), part).log()
        own = (wanted >= part.first) & (wanted < part.first + logits.size(1))
        column = torch.where(own, wanted - part.first, 0)[:, None]
        chosen = summed(torch.where(own, logits.gather(1, column)[:, 0], 0.0), part)
        ctx.save_for_backward(logits, normalizer, column, own)
        ctx.mark_non_differentiable(normalizer)
        return chosen - normalizer, normalizer

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        logits, normalizer, column, own = ctx.saved_tensors
        gradient = gradients[0]
        out = (logits - normalizer[:, None]).exp().mul_(-gradient[:, None])
        out.scatter_add_(1, column, torch.where(own, gradient, 0.0)[:, None])
        return out, None, None


class _Entropies(torch.autograd.Function):
    """d entropy / d logit = -probability x (log probability + entropy), for the words of this rank."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, normalizer: Tensor, part: VocabularyPart) -> Tensor:
        logs = logits - normalizer[:, None]
        entropies = summed(-(logs.exp() * logs).sum(dim=-1), part)
        ctx.save_for_backward(logits, normalizer, entropies)
        return entropies

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        logits, normalizer, entropies = ctx.saved_tensors
        logs = logits - normalizer[:, None]
        return logs.exp() * (logs + entropies[:, None]) * -gradients[0][:, None], None, None

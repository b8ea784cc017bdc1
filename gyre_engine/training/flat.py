"""All weights and all gradients of a model in one flat buffer each: what transfer registers and the optimizer walks.

Decaying parameters (two or more dimensions) come first. Each starts at a multiple of 64 bytes, because matrix kernels
may round differently by alignment, and equal inputs must give equal bytes in every process.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import Parameter

_ALIGNMENT_BYTES = 64


@dataclass(frozen=True, slots=True)
class Slot:
    """Where a parameter lies: elements offset..offset + size of the flat buffer."""

    name: str
    offset: int
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        return int(np.prod(self.shape))

    def of(self, flat: Tensor) -> Tensor:
        return flat[self.offset : self.offset + self.size].view(self.shape)


@dataclass(frozen=True, slots=True, eq=False)
class FlatParameters:
    """weights and gradients: flat, same layout; the first `decayed` elements take weight decay. `layout` by offset."""

    weights: Tensor
    gradients: Tensor
    decayed: int
    layout: tuple[Slot, ...]


def flatten(parameters: Iterable[tuple[str, Parameter]]) -> FlatParameters:
    """Move the parameters into one flat buffer; `.data` and `.grad` of each become views of it."""
    named = sorted(parameters, key=lambda item: (item[1].dim() < 2, item[0]))
    first = named[0][1]
    layout, total, decayed = _layout(named, _ALIGNMENT_BYTES // first.element_size())
    weights, gradients = (_zeros(total, first) for _ in range(2))
    for slot, (_, parameter) in zip(layout, named, strict=True):
        slot.of(weights).copy_(parameter.data)
        parameter.data = slot.of(weights)
        parameter.grad = slot.of(gradients)
    return FlatParameters(weights, gradients, decayed, tuple(layout))


def _layout(named: list[tuple[str, Parameter]], unit: int) -> tuple[list[Slot], int, int]:
    slots, offset, decayed = [], 0, 0
    for name, parameter in named:
        slots.append(Slot(name, offset, tuple(parameter.shape)))
        offset += -(-parameter.numel() // unit) * unit
        decayed = offset if parameter.dim() >= 2 else decayed
    return slots, offset, decayed


def _zeros(count: int, like: Tensor) -> Tensor:
    """A zeroed tensor on `like`'s device that starts at a multiple of 64 bytes."""
    spare = _ALIGNMENT_BYTES // like.element_size()
    raw = torch.zeros(count + spare, dtype=like.dtype, device=like.device)
    skip = -raw.data_ptr() % _ALIGNMENT_BYTES // like.element_size()
    return raw[skip : skip + count]

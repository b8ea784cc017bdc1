"""All weights and all gradients of a model in one flat buffer each: what transfer registers and the optimizer walks.

Decaying parameters (two or more dimensions) come first. Each starts at a multiple of 64 bytes, because matrix kernels
may round differently by alignment, and equal inputs must give equal bytes in every process.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
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
    named = dict(parameters)
    flat = allocate({name: tuple(p.shape) for name, p in named.items()}, next(iter(named.values())))
    for slot in flat.layout:
        parameter = named[slot.name]
        slot.of(flat.weights).copy_(parameter.data)
        parameter.data = slot.of(flat.weights)
        parameter.grad = slot.of(flat.gradients)
    return flat


def allocate(shapes: Mapping[str, tuple[int, ...]], like: Tensor) -> FlatParameters:
    """Zeroed buffers for parameters of these names and shapes, in `like`'s type and on its device."""
    layout, total, decayed = _layout(shapes, _ALIGNMENT_BYTES // like.element_size())
    return FlatParameters(_zeros(total, like), _zeros(total, like), decayed, tuple(layout))


def _layout(shapes: Mapping[str, tuple[int, ...]], unit: int) -> tuple[list[Slot], int, int]:
    slots, offset, decayed = [], 0, 0
    for name, shape in sorted(shapes.items(), key=lambda item: (len(item[1]) < 2, item[0])):
        slots.append(slot := Slot(name, offset, shape))
        offset += -(-slot.size // unit) * unit
        decayed = offset if len(shape) >= 2 else decayed
    return slots, offset, decayed


def _zeros(count: int, like: Tensor) -> Tensor:
    """A zeroed tensor on `like`'s device that starts at a multiple of 64 bytes."""
    spare = _ALIGNMENT_BYTES // like.element_size()
    raw = torch.zeros(count + spare, dtype=like.dtype, device=like.device)
    skip = -raw.data_ptr() % _ALIGNMENT_BYTES // like.element_size()
    return raw[skip : skip + count]

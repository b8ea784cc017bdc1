"""All weights and all gradients of a model in one flat buffer each: what transfer registers and the optimizer walks.

Gradients are summed in float32 where weights are of 16 bits. Decaying parameters (two or more dimensions) come first. Each starts at a
multiple of 64 bytes: matrix kernels may round differently by alignment, and equal inputs must give equal bytes in every process.
The optimizer updates unit by unit, a parameter or a run of a long one: whoever updates a unit computes the same bytes.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import Parameter

_ALIGNMENT_BYTES = 64
UNIT = 1 << 22
"""Elements of a unit at most: small enough that ranks share the words of a small model evenly."""


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


@dataclass(frozen=True, slots=True)
class Unit:
    """What the optimizer updates at once: elements offset..offset + size of the flat buffer, of one parameter."""

    name: str
    offset: int
    size: int
    decays: bool

    def of(self, run: Tensor, first: int = 0) -> Tensor:
        """The unit in a run of the flat buffer that begins at `first`."""
        return run[self.offset - first : self.offset - first + self.size]


def units_of(layout: Sequence[Slot], decayed: int) -> tuple[Unit, ...]:
    """All parameters, in the order of the layout; one longer than UNIT in several."""
    found = []
    for slot in layout:
        for number, start in enumerate(range(0, slot.size, UNIT)):
            name = slot.name if slot.size <= UNIT else f"{slot.name}.{number}"
            found.append(Unit(name, slot.offset + start, min(UNIT, slot.size - start), slot.offset < decayed))
    return tuple(found)


def shares(units: Sequence[Unit], ranks: int) -> list[tuple[Unit, ...]]:
    """A run of the units for each rank, about equally long; empty for some where there are fewer units than ranks."""
    total, done = sum(unit.size for unit in units), 0
    found: list[list[Unit]] = [[] for _ in range(ranks)]
    for unit in units:
        found[(2 * done + unit.size) * ranks // (2 * total)].append(unit)
        done += unit.size
    return [tuple(run) for run in found]


def span(units: Sequence[Unit]) -> tuple[int, int]:
    """(first element, one past the last) of a run of units."""
    return (units[0].offset, units[-1].offset + units[-1].size) if units else (0, 0)


def layout_digest(layout: Sequence[Slot]) -> str:
    """SHA-256 of the names and shapes, hex: of which model a state is."""
    return hashlib.sha256(json.dumps([(slot.name, slot.shape) for slot in layout]).encode()).hexdigest()


def flatten(parameters: Iterable[tuple[str, Parameter]]) -> FlatParameters:
    """Move the parameters into one flat buffer; `.data` and `.grad` of each become views of it."""
    named = dict(parameters)
    flat = allocate({name: tuple(p.shape) for name, p in named.items()}, next(iter(named.values())))
    for slot in flat.layout:
        parameter = named[slot.name]
        slot.of(flat.weights).copy_(parameter.data)
        parameter.data = slot.of(flat.weights)
        parameter.grad_dtype = flat.gradients.dtype
        parameter.grad = slot.of(flat.gradients)
    return flat


def allocate(shapes: Mapping[str, tuple[int, ...]], like: Tensor) -> FlatParameters:
    """Zeroed buffers for parameters of these names and shapes, in `like`'s type and on its device."""
    layout, total, decayed = _layout(shapes, _ALIGNMENT_BYTES // like.element_size())
    return FlatParameters(zeros(total, like, like.dtype), zeros(total, like, sum_type(like.dtype)), decayed, tuple(layout))


def sum_type(dtype: torch.dtype) -> torch.dtype:
    """In which gradients and masters of weights of this type are kept."""
    return torch.float32 if dtype.itemsize < 4 else dtype


def all_finite(gradients: Tensor) -> bool:
    """Their sum is finite where each is, and one pass over the memory; where it is not, it may only be too large."""
    return bool(torch.isfinite(gradients.sum())) or bool(torch.isfinite(gradients).all())


def _layout(shapes: Mapping[str, tuple[int, ...]], unit: int) -> tuple[list[Slot], int, int]:
    slots, offset, decayed = [], 0, 0
    for name, shape in sorted(shapes.items(), key=lambda item: (len(item[1]) < 2, item[0])):
        slots.append(slot := Slot(name, offset, shape))
        offset += -(-slot.size // unit) * unit
        decayed = offset if len(shape) >= 2 else decayed
    return slots, offset, decayed


def zeros(count: int, like: Tensor, dtype: torch.dtype) -> Tensor:
    """A zeroed tensor on `like`'s device that starts at a multiple of 64 bytes."""
    spare = _ALIGNMENT_BYTES // dtype.itemsize
    raw = torch.zeros(count + spare, dtype=dtype, device=like.device)
    skip = -raw.data_ptr() % _ALIGNMENT_BYTES // dtype.itemsize
    return raw[skip : skip + count]

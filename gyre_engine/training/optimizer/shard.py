"""Megatron's Adam on a run of units of the flat weights: all of them in a cell of one process, a share of them on each of its ranks.

Every unit is a parameter of its own to Adam, so a unit's bytes do not depend on who holds which others. Where weights have 16 bits,
masters in float32 take the update and the weights are their rounding.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from gyre_engine.training.model.flat import FlatParameters, Unit, span, sum_type, units_of
from gyre_engine.training.model.megatron_core import USING_PYTORCH_OPTIMIZER, Adam
from gyre_engine.training.optimizer import shard_store

MOMENTS = ("exp_avg", "exp_avg_sq")


@dataclass(frozen=True, slots=True)
class Update:
    """What Adam is told: the update's number from 1, and the values that it has by then."""

    number: int
    lr: float
    weight_decay: float
    betas: tuple[float, float]
    eps: float


class Shard:
    """The optimizer's state of `units`; `weights`: their run of the flat weights, changed in place."""

    def __init__(self, units: Sequence[Unit], weights: Tensor) -> None:
        self.units, self._weights = tuple(units), weights
        self._first, _ = span(units)
        self._masters = weights if sum_type(weights.dtype) is weights.dtype else weights.to(sum_type(weights.dtype))
        self._parameters = [Parameter(unit.of(self._masters, self._first)) for unit in self.units]
        self._adam = _adam(self.units, self._parameters) if units else None

    @property
    def dtype(self) -> torch.dtype:
        """Of what is updated."""
        return self._masters.dtype

    @property
    def has_masters(self) -> bool:
        return self._masters is not self._weights

    def update(self, gradient: Tensor, update: Update) -> None:
        """One update by this run of the gradient, clipped already."""
        if self._adam is None:
            return
        for group, decay in zip(self._adam.param_groups, (update.weight_decay, 0.0), strict=True):
            group.update(lr=update.lr, betas=update.betas, eps=update.eps, weight_decay=decay)
        for unit, parameter in zip(self.units, self._parameters, strict=True):
            parameter.grad = unit.of(gradient, self._first).to(self._masters.dtype)
        self._adam.step()
        self._adam.zero_grad(set_to_none=True)
        if self.has_masters:
            self._weights.copy_(self._masters)

    def tensors(self) -> dict[str, Tensor]:
        """The state by `<kind>/<unit>`, on the CPU; moments before the first update are zeros."""
        found = {}
        for unit, parameter in zip(self.units, self._parameters, strict=True):
            state = self._adam.state.get(parameter, {}) if self._adam else {}
            for kind in MOMENTS:
                found[f"{kind}/{unit.name}"] = state[kind].cpu() if kind in state else torch.zeros_like(parameter.detach()).cpu()
            if self.has_masters:
                found[f"master/{unit.name}"] = parameter.detach().cpu()
        return found

    def blank(self) -> dict[str, Tensor]:
        """Zeros of the names and sizes that `tensors` has, to be filled."""
        kinds = (*MOMENTS, "master") if self.has_masters else MOMENTS
        return {f"{k}/{p.name}": torch.zeros(p.size, dtype=self._masters.dtype) for p in self.units for k in kinds}

    def take(self, tensors: Mapping[str, Tensor], number: int) -> None:
        """The state after `number` updates, as `tensors` gave it."""
        if self._adam is None:
            return
        for unit, parameter in zip(self.units, self._parameters, strict=True):
            moments: dict[str, Any] = {k: tensors[f"{k}/{unit.name}"].to(parameter.device).clone() for k in MOMENTS}
            step = {"step": torch.tensor(float(number))} if USING_PYTORCH_OPTIMIZER else {}
            self._adam.state[parameter] = {**step, **moments} if number else {}
            if self.has_masters:
                parameter.data.copy_(tensors[f"master/{unit.name}"])
        if not USING_PYTORCH_OPTIMIZER:
            for group in self._adam.param_groups:
                group["step"] = number

    def hashes(self) -> list[str]:
        """SHA-256 of each of `tensors`, hex, in the order of units."""
        return [hashlib.sha256(_bytes(tensor)).hexdigest() for tensor in self.tensors().values()]


class OneShard:
    """Shards of a cell of one process."""

    def __init__(self, parameters: FlatParameters) -> None:
        self._parameters = parameters
        self._made: Shard | None = None

    @property
    def _shard(self) -> Shard:
        """Made when it is first used: masters are those of weights that were loaded by then."""
        if self._made is None:
            units = units_of(self._parameters.layout, self._parameters.decayed)
            self._made = Shard(units, self._parameters.weights[slice(*span(units))])
        return self._made

    def update(self, gradient: Tensor, update: Update) -> None:
        self._shard.update(gradient, update)

    def hashes(self) -> list[str]:
        return self._shard.hashes()

    def save(self, url: str, number: int) -> None:
        shard_store.save(url, self._shard.tensors(), number, alone=True)

    def restore(self, url: str) -> int:
        self._made = None
        number = shard_store.number(url)
        self._shard.take(shard_store.load(url, self._shard.blank()), number)
        return number


def _bytes(tensor: Tensor) -> memoryview:
    data: Any = tensor.contiguous().view(torch.uint8).numpy()
    return memoryview(data)


def _adam(units: Sequence[Unit], parameters: Sequence[Parameter]) -> torch.optim.Optimizer:
    """The class that Megatron names; torch's without its fused paths, so that a unit's sums are of one order."""
    pairs = list(zip(units, parameters, strict=True))
    groups: list[dict[str, Any]] = [{"params": [p for unit, p in pairs if unit.decays is decays]} for decays in (True, False)]
    plain = {"foreach": False, "fused": False} if USING_PYTORCH_OPTIMIZER else {}
    made: torch.optim.Optimizer = Adam(groups, **plain)
    return made

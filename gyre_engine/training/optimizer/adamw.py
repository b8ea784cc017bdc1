"""AdamW over the flat weights of the core's replica, deterministic; its state lies with whoever holds the shards.

One instance a run. The gradient's norm is of the whole, in float64, so clipping does not depend on how many ranks share the state.
"""

from __future__ import annotations

import hashlib
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gyre_engine.training.metrics import UpdateMetrics
from gyre_engine.training.model.flat import FlatParameters
from gyre_engine.training.optimizer.schedule import rates
from gyre_engine.training.optimizer.shard import OneShard, Update
from gyre_engine.training.replica import Hyper, NonFiniteGradient, TrainingError


class Shards(Protocol):
    """Who holds the optimizer's state: this process, or the ranks of a cell."""

    def update(self, gradient: Tensor, update: Update) -> None:
        """One update of all flat weights by the whole clipped gradient."""

    def hashes(self) -> list[str]:
        """Of every tensor of the state, in the order of units."""

    def save(self, url: str, number: int) -> None:
        """Write the state after `number` updates."""

    def restore(self, url: str) -> int:
        """Take a state that was written there; its number of updates."""


class AdamW:
    """An Optimizer (see the port). `shards`: who holds its state; None: this process."""

    def __init__(self, parameters: FlatParameters, shards: Shards | None = None) -> None:
        self._parameters, self._shards = parameters, shards or OneShard(parameters)
        self._number = 0

    def apply(self, gradient_sum: NDArray[np.float32], divisor: int, hyper: Hyper) -> UpdateMetrics:
        """See the port."""
        count = len(self._parameters.weights)
        if divisor < 1 or len(gradient_sum) != count:
            raise TrainingError(f"an update needs a divisor >= 1 and {count} gradients, got {divisor} and {len(gradient_sum)}")
        gradient = torch.tensor(gradient_sum, device=self._parameters.weights.device) / divisor
        norm = float(torch.linalg.vector_norm(gradient, dtype=torch.float64))
        if not np.isfinite(norm):
            raise NonFiniteGradient(f"the gradient of update {self._number + 1} is not finite; the weights stay as they were")
        scale = min(1.0, hyper.clip / norm) if hyper.clip and norm else 1.0
        found = rates(hyper, self._number + 1)
        self._shards.update(gradient * scale, Update(self._number + 1, found.lr, found.weight_decay, hyper.betas, hyper.eps))
        self._number += 1
        return UpdateMetrics(self._number, norm, scale, found.lr)

    def state_hash(self) -> str:
        """See the port."""
        return hashlib.sha256("\n".join([str(self._number), *self._shards.hashes()]).encode()).hexdigest()

    def save(self, url: str) -> None:
        """See the port."""
        self._shards.save(url, self._number)

    def restore(self, url: str) -> None:
        """See the port."""
        self._number = self._shards.restore(url)

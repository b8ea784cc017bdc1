"""AdamW over the flat weights of the core's replica; one instance a run, deterministic."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load, save
from torch import Tensor
from torch.nn import Parameter

from gyre_engine.training.flat import FlatParameters
from gyre_engine.training.replica import Hyper, TrainingError, UpdateMetrics


class AdamW:
    """An Optimizer (see the port): two flat parameters, the decaying part and the rest."""

    def __init__(self, parameters: FlatParameters) -> None:
        weights = parameters.weights
        parts = (weights[: parameters.decayed], weights[parameters.decayed :])
        self._parts = [Parameter(part) for part in parts]
        self._sizes = [len(part) for part in parts]
        self._adam = torch.optim.AdamW([{"params": [part]} for part in self._parts], foreach=False, fused=False)
        self._step = 0

    def apply(self, gradient_sum: NDArray[np.float32], divisor: int, hyper: Hyper) -> UpdateMetrics:
        """See the port."""
        if divisor < 1 or len(gradient_sum) != sum(self._sizes):
            raise TrainingError(
                f"an update needs a divisor >= 1 and {sum(self._sizes)} gradients, got {divisor} and {len(gradient_sum)}"
            )
        gradient = torch.tensor(gradient_sum, device=self._parts[0].device) / divisor
        norm = float(torch.linalg.vector_norm(gradient, dtype=torch.float64))
        if not np.isfinite(norm):
            raise TrainingError(f"the gradient of update {self._step + 1} is not finite; the weights stay as they were")
        scale = min(1.0, hyper.clip / norm) if hyper.clip and norm else 1.0
        self._update(gradient * scale, hyper)
        return UpdateMetrics(self._step, norm, scale, hyper.rate(self._step))

    def state(self) -> bytes:
        """See the port: step, and the two moments over the flat layout."""
        moments = {name: torch.cat([self._moment(part, name) for part in self._parts]) for name in _MOMENTS}
        return save({"step": torch.tensor(self._step, dtype=torch.int64), **moments})

    def restore(self, state: bytes) -> None:
        """See the port. Raises TrainingError for the state of another model."""
        tensors = load(state)
        if set(tensors) != {"step", *_MOMENTS} or any(len(tensors[name]) != sum(self._sizes) for name in _MOMENTS):
            raise TrainingError("this optimizer state is of another model; resume with the config that wrote it")
        self._step = int(tensors["step"])
        split = {name: torch.split(tensors[name], self._sizes) for name in _MOMENTS}
        for index, part in enumerate(self._parts):
            entry = {name: split[name][index].to(part.device).clone() for name in _MOMENTS}
            self._adam.state[part] = {"step": torch.tensor(float(self._step)), **entry} if self._step else {}

    def _update(self, gradient: Tensor, hyper: Hyper) -> None:
        self._step += 1
        decays = (hyper.weight_decay, 0.0)
        for group, decay in zip(self._adam.param_groups, decays, strict=True):
            group.update(lr=hyper.rate(self._step), betas=hyper.betas, eps=hyper.eps, weight_decay=decay)
        for part, grad in zip(self._parts, torch.split(gradient, self._sizes), strict=True):
            part.grad = grad
        self._adam.step()
        self._adam.zero_grad(set_to_none=True)

    def _moment(self, part: Parameter, name: str) -> Tensor:
        state = self._adam.state.get(part, {})
        return state[name].cpu() if name in state else torch.zeros(len(part), dtype=part.dtype)


_MOMENTS = ("exp_avg", "exp_avg_sq")

"""The training replica on Megatron-core in one process; `spread` spreads it over several.

Importing this takes seconds and hundreds of megabytes: only trainers do, forked from a parent that has it loaded.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch._C._distributed_c10d import HashStore

from gyre_engine.batching.microstep import PackedMicroStep
from gyre_engine.losses.config import LossConfig
from gyre_engine.training.metrics import StepMetrics
from gyre_engine.training.model.flat import FlatParameters, all_finite, flatten
from gyre_engine.training.model.megatron_core import parallel_state
from gyre_engine.training.model.shape import ModelShape
from gyre_engine.training.model.tree_model import build_model, prepare_process
from gyre_engine.training.model.weights import fill, image_of, read_image, to_megatron
from gyre_engine.training.replica import ReplicaOptions, require_trainable


class MegatronReplica:
    """A CoreReplica (see the port) of one model shape, in this process alone."""

    def __init__(self, shape: ModelShape, options: ReplicaOptions | None = None) -> None:
        self.shape = shape
        self.options = options or ReplicaOptions()
        self.version = -1
        prepare_process(self.options.device)
        _join_a_world_of_one()
        self._model = build_model(shape, self.options)
        self.parameters: FlatParameters = flatten(self._model.named_parameters())

    def load(self, image: bytes | Path, version: int) -> None:
        """See the port. Raises Untrainable where the image is of another model."""
        fill(self.parameters, to_megatron(read_image(image), self.shape))
        self.version = version

    def accumulate(self, step: PackedMicroStep, loss: LossConfig) -> StepMetrics:
        """See the port. Raises TrainingError before any weights were loaded, or for a version from the future."""
        require_trainable(step, self.version, self.shape.vocab)
        hidden = self._model.hidden(step.ids, step.position, step.end, experts=step.experts)
        return self._model.add_gradient(hidden, step, loss, self.version)

    def zero(self) -> None:
        """See the port."""
        self.parameters.gradients.zero_()

    def gradient_buffer(self) -> NDArray[np.float32]:
        """See the port. On a GPU: a copy on the host."""
        return self.parameters.gradients.cpu().numpy()

    def shards(self) -> None:
        """See the port: there is no other process."""

    def finite(self) -> bool:
        """See the port."""
        return all_finite(self.parameters.gradients)

    def logprobs(self, ids: NDArray[np.int32], *, temperature: float | None = None) -> NDArray[np.float32]:
        """See the port."""
        count = len(ids)
        with torch.no_grad():
            hidden = self._model.hidden(ids, np.arange(count), np.full(count, count, dtype=np.int32))
            return self._model.following(hidden, ids, temperature)

    def target_logprobs(self, step: PackedMicroStep) -> NDArray[np.float32]:
        """See the port."""
        with torch.no_grad():
            return self._model.scores(self._model.hidden(step.ids, step.position, step.end), step)

    def export(self) -> bytes:
        """See the port."""
        return image_of(self.parameters, self.shape)

    def weights_hash(self) -> str:
        """See the port."""
        return hashlib.sha256(self.export()).hexdigest()

    def close(self) -> None:
        """See the port: nothing is held beyond this object."""


def _join_a_world_of_one() -> None:
    """What Megatron asks for, without a port to fight for."""
    if not torch.distributed.is_initialized():
        torch.distributed.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    if not parallel_state.model_parallel_is_initialized():
        parallel_state.initialize_model_parallel(1, 1)

"""The reference policy of a run with loss.kl: its log-probabilities of a step's targets, scored in the core. Light until it is used.

It has no replica of its own: the policy's computes with the reference's weights meanwhile. That costs one more copy of the weights in
memory, no second buffer of gradients, and works in a cell of several ranks, whose process group has room for one model. Both policies
have one shape therefore.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from gyre_engine.batching.microstep import PackedMicroStep
from gyre_engine.training.core_replica import CoreReplica
from gyre_engine.training.model.shape import ModelShape
from gyre_engine.training.replica import TrainingError, Untrainable

if TYPE_CHECKING:
    from torch import Tensor

_MAY_DIFFER = ("context",)


class BorrowedReplica:
    """A ReferenceScorer: a replica that holds the reference's weights while it scores, and its own again afterwards."""

    def __init__(self, replica: CoreReplica, folder: Path) -> None:
        """Raises Untrainable where the model in `folder` is of another shape, TrainingError where it cannot be read."""
        import torch

        from gyre_engine.training.model.weights import fill, read_image, to_megatron

        if wrong := unlike(replica.shape, ModelShape.of_folder(folder), folder):
            raise Untrainable(f"loss.reference: {wrong}")
        own = replica.parameters
        self._replica = replica
        self._weights = torch.zeros_like(own.weights, device="cpu")
        fill(replace(own, weights=self._weights), to_megatron(read_image(folder), replica.shape))

    def score(self, steps: Sequence[PackedMicroStep]) -> list[NDArray[np.float32]]:
        """See the port."""
        with self._in_place():
            return [self._replica.target_logprobs(step) for step in steps]

    @contextmanager
    def _in_place(self) -> Iterator[None]:
        own = self._replica.parameters.weights
        held = self._weights.new_empty(len(own)).copy_(own)
        try:
            self._hold(self._weights)
            yield
        finally:
            self._hold(held)

    def _hold(self, weights: Tensor) -> None:
        """Setting the version says that weights have changed in place."""
        self._replica.parameters.weights.copy_(weights)
        self._replica.version = self._replica.version


def misfit(policy: ModelShape, folder: Path) -> str:
    """Why the model in `folder` cannot be the reference of a policy of this shape; empty where it can."""
    try:
        found = ModelShape.of_folder(folder)
    except (TrainingError, OSError, ValueError, KeyError) as error:
        return f"{folder} cannot be read as a model: {error}"
    return unlike(policy, found, folder)


def unlike(policy: ModelShape, found: ModelShape, folder: Path) -> str:
    """In what the model in `folder` differs that a reference has to share; empty where it does not."""
    names = [f.name for f in fields(policy) if f.name not in _MAY_DIFFER and getattr(policy, f.name) != getattr(found, f.name)]
    if "vocab" in names:
        return f"{folder} has a vocabulary of {found.vocab} tokens, the policy one of {policy.vocab}: name a model of the same"
    if names:
        differences = ", ".join(f"{name} {getattr(found, name)} instead of {getattr(policy, name)}" for name in names)
        return f"{folder} is of another shape than the policy ({differences}): name a model of the policy's shape"
    return ""

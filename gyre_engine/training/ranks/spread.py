"""A training replica whose model is spread over the ranks of one cell. To the outside it is as one of a single process:
the same layout of gradients, the same images, the same hashes; so cells of different meshes may train one step.

The leader holds the whole weights and gradients too, flat, which is what the optimizer and the transfer know; its ranks get their
parts before they compute, and give their gradients when the sum is asked for, in the order of their numbers.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import torch.distributed as dist
from numpy.typing import NDArray

from gyre_engine.batching.microstep import PackedMicroStep
from gyre_engine.losses.config import LossConfig
from gyre_engine.training.mesh import Mesh
from gyre_engine.training.metrics import StepMetrics
from gyre_engine.training.model.flat import FlatParameters, Slot, allocate
from gyre_engine.training.model.shape import ModelShape
from gyre_engine.training.model.weights import fill, image_of, megatron_shapes, read_image, to_megatron
from gyre_engine.training.ranks.crew import LIMIT_S, Crew
from gyre_engine.training.ranks.fit import require_fit
from gyre_engine.training.ranks.rank import LEADER, Rank
from gyre_engine.training.ranks.sharding import Sharding
from gyre_engine.training.ranks.splitting import joined, split
from gyre_engine.training.ranks.spread_shards import SpreadShards
from gyre_engine.training.replica import ReplicaOptions, TrainingError, require_trainable


class SpreadReplica:
    """A CoreReplica (see the port): this process leads, as rank 0, the others it forks. Make it before any thread."""

    def __init__(
        self, shape: ModelShape, mesh: Mesh, options: ReplicaOptions | None = None, *, scratch: str = "", limit_s: float = LIMIT_S
    ) -> None:
        self.shape, self.mesh, self.options = shape, mesh, options or ReplicaOptions()
        require_fit(mesh, shape)
        if self.options.device != "cpu":
            raise TrainingError("a cell of several ranks trains over gloo, on the CPU: set all of cells.*_parallel to 1 on a GPU")
        self._crew, self._own = Crew.fork(
            mesh.ranks, lambda rank: Rank(shape, self.options, mesh, rank, limit_s), scratch=scratch, limit_s=limit_s
        )
        self._others = range(LEADER + 1, mesh.ranks)
        self.parameters: FlatParameters = allocate(megatron_shapes(shape), self._own.parameters.weights)
        self._sharding = Sharding(shape, mesh, self.parameters.layout)
        self._tell_all("layout")
        self._layouts: list[tuple[Slot, ...]] = [self._own.layout(), *self._answers()]
        self._version, self._stale = -1, False

    @property
    def version(self) -> int:
        """See the port."""
        return self._version

    @version.setter
    def version(self, version: int) -> None:
        """The whole weights have changed: the ranks take theirs before they compute again."""
        self._version, self._stale = version, True

    def load(self, image: bytes | Path, version: int) -> None:
        """See the port. Raises TrainingError where the image is of another model."""
        fill(self.parameters, to_megatron(read_image(image), self.shape))
        self.version = version

    def accumulate(self, step: PackedMicroStep, loss: LossConfig) -> StepMetrics:
        """See the port. With data parallelism each share is whole trees of the micro-step; a rank without a share waits."""
        require_trainable(step, self.version, self.shape.vocab)
        self._hand_out()
        shares = dict(enumerate(split(step, self.mesh.data)))
        for rank in self._others:
            self._crew.tell(rank, "accumulate", shares.get(self.mesh.place(rank).data), loss, self.version)
        found = [self._own.accumulate(shares[self._own.place.data], loss, self.version)]
        found += [self._crew.answer(rank) for rank in self._others]
        return sum((metrics for metrics in found if metrics is not None), StepMetrics())

    def zero(self) -> None:
        """See the port."""
        self._tell_all("zero")
        self._own.zero()
        self._answers()

    def gradient_buffer(self) -> NDArray[np.float32]:
        """See the port: gathered anew at each call."""
        whole = self.parameters.gradients.zero_()
        self._sharding.add(whole, self._own.parameters.gradients, self._layouts[LEADER], self._own.place)
        for rank in self._others:
            local = self._buffer(rank).gradients
            self._crew.tell(rank, "give_gradients")
            dist.recv(local, rank)
            self._crew.answer(rank)
            self._sharding.add(whole, local, self._layouts[rank], self.mesh.place(rank))
        return whole.numpy()

    def finite(self) -> bool:
        """See the port."""
        self._tell_all("finite")
        return all([self._own.finite(), *self._answers()])

    def shards(self) -> SpreadShards:
        """See the port: the ranks hold it."""
        return SpreadShards(self.parameters, self._crew, self.mesh.ranks)

    def logprobs(self, ids: NDArray[np.int32], *, temperature: float | None = None) -> NDArray[np.float32]:
        """See the port."""
        self._hand_out()
        self._tell_all("logprobs", ids, temperature)
        found = [self._own.logprobs(ids, temperature), *self._answers()]
        return next(each for each in found if each is not None)

    def target_logprobs(self, step: PackedMicroStep) -> NDArray[np.float32]:
        """See the port."""
        self._hand_out()
        shares = dict(enumerate(split(step, self.mesh.data)))
        for rank in self._others:
            self._crew.tell(rank, "target_logprobs", shares.get(self.mesh.place(rank).data))
        found = {LEADER: self._own.target_logprobs(shares[self._own.place.data])}
        found |= {rank: self._crew.answer(rank) for rank in self._others}
        of_share = {self.mesh.place(rank).data: values for rank, values in found.items() if values is not None}
        return joined(step, self.mesh.data, [of_share[number] for number in shares])

    def export(self) -> bytes:
        """See the port."""
        return image_of(self.parameters, self.shape)

    def weights_hash(self) -> str:
        """See the port."""
        return hashlib.sha256(self.export()).hexdigest()

    def close(self) -> None:
        """End the other ranks."""
        self._crew.close()

    def _hand_out(self) -> None:
        """Give every rank its part of weights that have changed."""
        if not self._stale:
            return
        whole = self.parameters.weights
        self._sharding.take(whole, self._own.parameters.weights, self._layouts[LEADER], self._own.place)
        for rank in self._others:
            local = self._buffer(rank).weights
            self._sharding.take(whole, local, self._layouts[rank], self.mesh.place(rank))
            self._crew.tell(rank, "take_weights")
            dist.send(local, rank)
            self._crew.answer(rank)
        self._stale = False

    def _buffer(self, rank: int) -> FlatParameters:
        """Zeroed memory like a rank's."""
        return allocate({slot.name: slot.shape for slot in self._layouts[rank]}, self.parameters.weights)

    def _tell_all(self, method: str, *args: Any) -> None:
        for rank in self._others:
            self._crew.tell(rank, method, *args)

    def _answers(self) -> list[Any]:
        return [self._crew.answer(rank) for rank in self._others]

"""One rank of a cell: a part of the model, and what its leader has it do. Every rank runs the same calls in the same order.

Within a stage the ranks sum by Megatron's collectives. Between stages hidden states go on and their gradients come back, point to
point: Megatron's own schedules need CUDA. A micro-step goes through a pipeline in pieces, whole trees, so that stages overlap.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor

from gyre_engine.batching.microstep import PackedMicroStep
from gyre_engine.experts import NO_ROWS, Rows
from gyre_engine.losses.config import LossConfig
from gyre_engine.training.mesh import Mesh
from gyre_engine.training.metrics import StepMetrics
from gyre_engine.training.model.flat import FlatParameters, Slot, Unit, all_finite, flatten, span, zeros
from gyre_engine.training.model.megatron_core import parallel_state
from gyre_engine.training.model.shape import ModelShape
from gyre_engine.training.model.tree_model import build_model, prepare_process
from gyre_engine.training.optimizer import shard_store
from gyre_engine.training.optimizer.shard import Shard, Update
from gyre_engine.training.ranks.splitting import joined, split
from gyre_engine.training.replica import ReplicaOptions, TrainingError

LEADER = 0


@dataclass(slots=True)
class Piece:
    """A piece of a micro-step on its way: what came from the stage before (None on the first) and what goes on."""

    step: PackedMicroStep
    given: Tensor | None
    out: Tensor


@dataclass(slots=True)
class Mail:
    """What was sent and may still be under way: its memory must stand until it has arrived."""

    under_way: list[tuple[Any, Tensor]] = field(default_factory=list)

    def send(self, tensor: Tensor, to: int) -> None:
        tensor = tensor.contiguous()
        self.under_way.append((dist.isend(tensor, to), tensor))

    def settle(self) -> None:
        for work, _ in self.under_way:
            work.wait()
        self.under_way.clear()


class Rank:
    """The part of the model at `mesh.place(rank)`; the process has joined the group of the cell's ranks."""

    def __init__(self, shape: ModelShape, options: ReplicaOptions, mesh: Mesh, rank: int, limit_s: float) -> None:
        prepare_process(options.device)
        parallel_state.initialize_model_parallel(
            mesh.tensor, mesh.pipeline, create_gloo_process_groups=False, distributed_timeout_minutes=limit_s / 60
        )
        self._hidden, self._mesh, self.place = shape.hidden, mesh, mesh.place(rank)
        self._require_place()
        self._model = build_model(shape, options, mesh, self.place)
        self.parameters: FlatParameters = flatten(self._model.named_parameters())
        apart = mesh.tensor * mesh.data
        self._before = rank - apart if self.place.stage else None
        self._after = None if mesh.is_last(self.place) else rank + apart
        self._mail = Mail()

    def layout(self) -> tuple[Slot, ...]:
        """Of this rank's flat buffers."""
        return self.parameters.layout

    def take_weights(self) -> None:
        """From the leader."""
        dist.recv(self.parameters.weights, LEADER)

    def give_gradients(self) -> None:
        """To the leader."""
        dist.send(self.parameters.gradients, LEADER)

    def zero(self) -> None:
        self.parameters.gradients.zero_()

    def finite(self) -> bool:
        """Whether this rank's gradients hold neither NaN nor infinity."""
        return all_finite(self.parameters.gradients)

    def begin_shard(self, units: Sequence[Unit]) -> None:
        """Hold the optimizer's state of these units of the whole model; their weights come from the leader."""
        first, last = span(units)
        self._shard_weights = zeros(last - first, self.parameters.weights, self.parameters.weights.dtype)
        dist.recv(self._shard_weights, LEADER)
        self._shard = Shard(units, self._shard_weights)

    def update_shard(self, update: Update) -> None:
        """By a gradient from the leader; it gets the weights."""
        gradient = zeros(len(self._shard_weights), self._shard_weights, self._shard.dtype)
        dist.recv(gradient, LEADER)
        self._shard.update(gradient, update)
        dist.send(self._shard_weights, LEADER)

    def shard_hashes(self) -> list[str]:
        return self._shard.hashes()

    def save_shard(self, url: str, number: int) -> None:
        """Together with all other ranks."""
        shard_store.save(url, self._shard.tensors(), number, alone=False)

    def load_shard(self, url: str, number: int) -> None:
        self._shard.take(shard_store.load(url, self._shard.blank()), number)

    def accumulate(self, step: PackedMicroStep | None, loss: LossConfig, version: int) -> StepMetrics | None:
        """Add this rank's part of the gradient; what was measured, from one rank of the last stage. None: no share of it."""
        if step is None:
            return None
        pieces = [self._forward(piece, piece.experts) for piece in split(step, self._mesh.pipeline)]
        metrics = StepMetrics()
        while pieces:
            metrics = metrics + self._backward(pieces.pop(), loss, version)
        self._mail.settle()
        return metrics if self._speaks else None

    def logprobs(self, ids: NDArray[np.int32], temperature: float | None) -> NDArray[np.float32] | None:
        """As the port's, from one rank of the last stage; the first of those that hold the same does it."""
        if self.place.data:
            return None
        count = len(ids)
        with torch.no_grad():
            given = self._receive(self._before, count)
            out = self._model.hidden(ids, np.arange(count), np.full(count, count, dtype=np.int32), given)
            if self._after is None:
                found = self._model.following(out, ids, temperature)
                return found if self._speaks else None
            self._mail.send(out, self._after)
        self._mail.settle()
        return None

    def target_logprobs(self, step: PackedMicroStep | None) -> NDArray[np.float32] | None:
        """As the port's of this rank's share of a micro-step, from one rank of the last stage."""
        if step is None:
            return None
        with torch.no_grad():
            found = [self._scores(piece) for piece in split(step, self._mesh.pipeline)]
        self._mail.settle()
        return joined(step, self._mesh.pipeline, found) if self._speaks else None

    def _scores(self, step: PackedMicroStep) -> NDArray[np.float32]:
        out = self._model.hidden(step.ids, step.position, step.end, self._receive(self._before, step.tokens))
        if self._after is None:
            return self._model.scores(out, step)
        self._mail.send(out, self._after)
        return np.empty(0, np.float32)

    @property
    def _speaks(self) -> bool:
        """The ranks that share matrices measure the same: one of them says it."""
        return self._after is None and self.place.tensor == 0

    def _forward(self, step: PackedMicroStep, experts: Rows = NO_ROWS) -> Piece:
        given = self._receive(self._before, step.tokens)
        if given is not None:
            given.requires_grad_()
        out = self._model.hidden(step.ids, step.position, step.end, given, experts=experts)
        if self._after is not None:
            self._mail.send(out.detach(), self._after)
        return Piece(step, given, out)

    def _backward(self, piece: Piece, loss: LossConfig, version: int) -> StepMetrics:
        metrics = StepMetrics()
        gradient = self._receive(self._after, piece.step.tokens)
        if gradient is None:
            metrics = self._model.add_gradient(piece.out, piece.step, loss, version)
        else:
            piece.out.backward(gradient)  # type: ignore[no-untyped-call]
        if self._before is not None and piece.given is not None and piece.given.grad is not None:
            self._mail.send(piece.given.grad, self._before)
        return metrics

    def _receive(self, source: int | None, rows: int) -> Tensor | None:
        if source is None:
            return None
        tensor = self.parameters.weights.new_empty(rows, self._hidden)
        dist.recv(tensor, source)
        return tensor

    def _require_place(self) -> None:
        """The leader cuts by `mesh.place`; Megatron's groups must agree."""
        theirs = (
            parallel_state.get_tensor_model_parallel_rank(),
            parallel_state.get_pipeline_model_parallel_rank(),
            parallel_state.get_data_parallel_rank(),
        )
        if theirs != (self.place.tensor, self.place.stage, self.place.data):
            raise TrainingError(
                f"Megatron stands at {theirs}, this cell's mesh says {self.place}: its order of ranks has changed"
            )

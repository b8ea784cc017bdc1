"""How the ranks of one cell share a model: Megatron's tensor, pipeline and data parallelism. It never crosses cells (method.md, 1).

Light: imports no torch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from gyre_engine.training.model.shape import ModelShape
from gyre_engine.training.replica import TrainingError


@dataclass(frozen=True, slots=True)
class Place:
    """Where a rank stands: its share of every matrix, its stage of layers, its share of a micro-step."""

    tensor: int
    stage: int
    data: int


@dataclass(frozen=True, slots=True)
class Mesh:
    """Ranks of a cell: tensor x pipeline x data; 1 x 1 x 1 is a cell of one process."""

    tensor: int = 1
    pipeline: int = 1
    data: int = 1

    @property
    def ranks(self) -> int:
        """Processes of the cell's trainer."""
        return self.tensor * self.pipeline * self.data

    def place(self, rank: int) -> Place:
        """Megatron's order: ranks that share matrices stand side by side, the stages of a pipeline farthest apart."""
        return Place(rank % self.tensor, rank // (self.tensor * self.data), rank // self.tensor % self.data)

    def is_last(self, place: Place) -> bool:
        """Whether the last layers, and so the logits, are this rank's."""
        return place.stage == self.pipeline - 1


ONE = Mesh()
"""A cell whose trainer is one process."""


def misfits(mesh: Mesh, shape: ModelShape) -> Iterator[tuple[str, str]]:
    """(key of [cells], what is wrong and the remedy) of every size that this model cannot be divided by."""
    if shape.experts is not None and max(mesh.tensor, mesh.pipeline) > 1:
        key = "tensor_parallel" if mesh.tensor > 1 else "pipeline_parallel"
        yield key, f"cells.{key} is above 1, but a mixture of experts is not divided among ranks yet: set it to 1"
    tensor = {
        "attention heads": shape.heads, "key-value heads": shape.kv_heads, "words of its vocabulary": shape.vocab,
        "rows of its feed-forward layers": shape.ffn,
    }  # fmt: skip
    wanted = [("tensor_parallel", mesh.tensor, what, size) for what, size in tensor.items()]
    for key, parts, what, size in [*wanted, ("pipeline_parallel", mesh.pipeline, "layers", shape.layers)]:
        if size % parts:
            yield (
                key,
                f"cells.{key} is {parts}, but the model's {size} {what} cannot be divided by it: choose a divisor of {size}",
            )


def require_fit(mesh: Mesh, shape: ModelShape) -> None:
    """Raises TrainingError with everything that does not divide."""
    if wrong := [text for _, text in misfits(mesh, shape)]:
        raise TrainingError("; ".join(wrong))

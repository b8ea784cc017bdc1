"""How the ranks of one cell share a model: Megatron's tensor, pipeline and data parallelism. It never crosses cells (method.md, 1).

Light: imports nothing of this package. Which models a mesh divides is `ranks.fit`'s to say.
"""

from __future__ import annotations

from dataclasses import dataclass


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

"""Muon (Jordan et al., 2024) in float32, for the warm start: torch's own computes in bfloat16, which is 10x slower on a
CPU without it.
"""

from collections.abc import Iterable

import torch
from torch import Tensor

QUINTIC = (3.4445, -4.7750, 2.0315)
"""Coefficients of the published Newton-Schulz iteration."""


def orthogonal(matrices: Tensor, rounds: int = 5) -> Tensor:
    """The nearest (semi-)orthogonal matrices, roughly: singular values end within 0.7 .. 1.2. float[count, rows, columns]."""
    tall = matrices.shape[1] > matrices.shape[2]
    x = matrices.transpose(1, 2) if tall else matrices
    x = x / (torch.linalg.matrix_norm(x, keepdim=True) + 1e-7)
    a, b, c = QUINTIC
    for _ in range(rounds):
        gram = x @ x.transpose(1, 2)
        x = a * x + (b * gram + c * gram @ gram) @ x
    done: Tensor = x.transpose(1, 2) if tall else x
    return done


class Muon:
    """Nesterov momentum, orthogonalised, scaled to the root mean square of an AdamW update (0.2)."""

    def __init__(self, matrices: Iterable[Tensor], momentum: float = 0.95) -> None:
        self.averages = [(matrix, torch.zeros_like(matrix)) for matrix in matrices]
        self.momentum = momentum

    @torch.no_grad()
    def step(self, rate: float) -> None:
        """One update; matrices of one shape are done together. Raises ValueError where a gradient is missing."""
        shapes: dict[torch.Size, list[tuple[Tensor, Tensor]]] = {}
        for matrix, average in self.averages:
            shapes.setdefault(matrix.shape, []).append((matrix, self._direction(matrix, average)))
        for shape, alike in shapes.items():
            changes = orthogonal(torch.stack([direction for _, direction in alike]))
            for (matrix, _), change in zip(alike, changes, strict=True):
                matrix.add_(change, alpha=-rate * 0.2 * max(shape) ** 0.5)

    def _direction(self, matrix: Tensor, average: Tensor) -> Tensor:
        if matrix.grad is None:
            raise ValueError("Muon needs a gradient for each of its matrices; call backward() first")
        average.lerp_(matrix.grad, 1 - self.momentum)
        return matrix.grad.lerp(average, self.momentum)

"""Which models can be divided among the ranks of a mesh. Light: imports no torch."""

from __future__ import annotations

from collections.abc import Iterator

from gyre_engine.training.mesh import Mesh
from gyre_engine.training.model.shape import ModelShape
from gyre_engine.training.replica import TrainingError


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

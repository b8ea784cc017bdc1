"""What of a whole model's flat buffer is a rank's: Megatron's layouts for tensor and pipeline parallelism, bit-exact both ways."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from gyre_engine.training.mesh import Mesh, Place
from gyre_engine.training.model.flat import Slot
from gyre_engine.training.model.shape import ModelShape

_ROWS = ("word_embeddings.weight", "output_layer.weight", "linear_qkv.weight", "linear_qkv.bias")
"""Every rank has a run of rows: words, or groups of heads with their keys and values."""
_HALVES = ("linear_fc1.weight",)
"""Gate and up stand one below the other; every rank has a run of rows of both."""
_COLUMNS = ("linear_proj.weight", "linear_fc2.weight")
_PER_HEAD = ("q_layernorm.weight", "k_layernorm.weight")
"""Every rank has them whole and sees the gradient of its own heads."""

_LAYERS = "decoder.layers."


class Sharding:
    """The map between a whole model's slots and those of the rank at a place."""

    def __init__(self, shape: ModelShape, mesh: Mesh, whole: Sequence[Slot]) -> None:
        self._shape, self._mesh = shape, mesh
        self._whole: Mapping[str, Slot] = {slot.name: slot for slot in whole}

    def take(self, whole: Tensor, local: Tensor, layout: Sequence[Slot], place: Place) -> None:
        """Fill a rank's flat buffer from the whole model's."""
        for slot in layout:
            part = self._part(whole, slot.name, place)
            slot.of(local).view(part.shape).copy_(part)

    def add(self, whole: Tensor, local: Tensor, layout: Sequence[Slot], place: Place) -> None:
        """Add a rank's flat gradients to the whole model's. What ranks compute in common counts once."""
        for slot in layout:
            if place.tensor == 0 or slot.name.endswith((*_ROWS, *_HALVES, *_COLUMNS, *_PER_HEAD)):
                part = self._part(whole, slot.name, place)
                part.add_(slot.of(local).view(part.shape))

    def _part(self, whole: Tensor, name: str, place: Place) -> Tensor:
        """The view of `whole` that is the parameter `name` of a rank."""
        full = self._whole[self._whole_name(name, place)].of(whole)
        if name.endswith(_HALVES):
            return full.view(2, -1, *full.shape[1:]).chunk(self._mesh.tensor, dim=1)[place.tensor]
        if name.endswith((*_ROWS, *_COLUMNS)):
            return full.chunk(self._mesh.tensor, dim=1 if name.endswith(_COLUMNS) else 0)[place.tensor]
        return full

    def _whole_name(self, name: str, place: Place) -> str:
        """A stage numbers its layers from 0; tied weights are one parameter that both ends of a pipeline hold."""
        if name.startswith(_LAYERS):
            layer, _, rest = name.removeprefix(_LAYERS).partition(".")
            first = place.stage * self._shape.layers // self._mesh.pipeline
            return f"{_LAYERS}{first + int(layer)}.{rest}"
        if name == "output_layer.weight" and self._shape.tied:
            return "embedding.word_embeddings.weight"
        return name

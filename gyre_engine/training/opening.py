"""The replica of a cell: in one process, or spread over its ranks. Light until it is called."""

from __future__ import annotations

from pathlib import Path

from gyre_engine.training.core_replica import CoreReplica
from gyre_engine.training.mesh import ONE, Mesh
from gyre_engine.training.model.shape import ModelShape
from gyre_engine.training.replica import ReplicaOptions


def open_replica(model: Path, options: ReplicaOptions, mesh: Mesh = ONE, *, scratch: str = "") -> CoreReplica:
    """A replica of the model in the folder `model`, without weights yet. With several ranks it forks: call it before any thread."""
    from gyre_engine.training.model import megatron
    from gyre_engine.training.ranks import spread

    shape = ModelShape.of_folder(model)
    if mesh.ranks == 1:
        return megatron.MegatronReplica(shape, options)
    return spread.SpreadReplica(shape, mesh, options, scratch=scratch)

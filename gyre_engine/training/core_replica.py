"""The port of what changes a replica's weights in place: the core's optimizer, and the reference that is scored with it.

A member's replica is a `TrainingReplica` alone. Light: torch is named in types only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from gyre_engine.training.replica import TrainingReplica

if TYPE_CHECKING:
    from gyre_engine.training.model.flat import FlatParameters
    from gyre_engine.training.model.shape import ModelShape
    from gyre_engine.training.optimizer.adamw import Shards


class CoreReplica(TrainingReplica, Protocol):
    """A TrainingReplica with its weights laid open. Who has changed them sets `version`, also to what it was.

    shape:       of the model
    parameters:  the whole model's weights and gradients, flat
    """

    shape: ModelShape
    parameters: FlatParameters

    def shards(self) -> Shards | None:
        """Who holds the state of an optimizer of this replica; None: the process that makes the optimizer."""

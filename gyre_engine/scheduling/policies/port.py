"""What a policy is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from gyre_engine.scheduling.cluster import Cluster, Decision, Demand


@dataclass(frozen=True, slots=True)
class PolicySettings:
    """Options of the policies; each reads its own.

    slack:          paper: cells' worth of capacity that must be free when a cell leaves sampling; 1 is the paper's rule
    training_cells: async: how many cells train for ever, the core among them
    """

    slack: float = 1.0
    training_cells: int = 1


class Policy(Protocol):
    """Decides what happens next. Pure: no clock, no memory."""

    def __call__(self, cluster: Cluster, demand: Demand, settings: PolicySettings, /) -> Decision | None:
        """The next command, or None where all is as it should be. Called again once the command is carried out."""

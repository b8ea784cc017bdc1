"""The derivations by name."""

from __future__ import annotations

from collections.abc import Callable

from gyre_engine.admission import AdmissionSettings
from streams.admission import AdmissionStream
from streams.derivation import Derivation
from streams.trajectory_trees import TrajectoryTrees
from streams.water_level import WaterLevelStream

DERIVATIONS: dict[str, Callable[[AdmissionSettings], Derivation]] = {
    TrajectoryTrees.name: lambda settings: TrajectoryTrees(settings.config_hash),
    AdmissionStream.name: AdmissionStream,
    WaterLevelStream.name: lambda settings: WaterLevelStream(settings.config_hash),
}
ALL = tuple(DERIVATIONS)

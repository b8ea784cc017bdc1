"""What a cell's agent says of its engine, period by period.

writes    cells: cell-health (by the agent)
promises  a prefill that was told once is not told again: costs are fitted from them
"""

from __future__ import annotations

from dataclasses import dataclass

from gyre_engine.events.cells import CellHealth
from gyre_engine.sampling.port import EngineStats


@dataclass(slots=True)
class Health:
    """The reports of one incarnation."""

    cell: str
    incarnation: str
    _told: tuple[tuple[int, int, int], ...] = ()

    def well(self, stats: EngineStats) -> CellHealth:
        """The engine answers."""
        new = tuple(one for one in stats.prefills if one not in self._told)
        self._told = stats.prefills
        return CellHealth(
            cell=self.cell, incarnation=self.incarnation, healthy=True, running=stats.running, waiting=stats.waiting,
            kv_tokens=stats.kv_tokens_used, generated_tokens=stats.generated_tokens, prefilled_tokens=stats.prefill_tokens,
            reused_tokens=stats.cache_hit_tokens, prefills=new,
        )  # fmt: skip

    def lost(self, why: str) -> CellHealth:
        """It does not, or not as the one that it was."""
        return CellHealth(cell=self.cell, incarnation=self.incarnation, healthy=False, reason=why)

"""What becomes of the requests that a drained cell interrupted: where each goes on, and whether its KV moves or is computed again.

Pure. The costs are measured, by the events that say what exports, imports and prefills took, and fitted by least squares of relative
errors, since the choice is close where both are small:

    seconds of a move    = a + b * bytes                     (kv-exported and kv-imported of one request)
    seconds of a prefill = c * n + d * (end**2 - start**2)   (n = end - start tokens computed after `start`; the square is attention's)

A move pays where it and its share of what failed moves have cost are less than the prefill. Its KV is waited for as long as the
prefill would take: whatever becomes of the move, the call loses no more than that again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from gyre_engine.events import Event
from gyre_engine.events.cells import OTHER_WEIGHTS, CellHealth, Drained, Interrupted, KvExported, KvImported, Move
from gyre_engine.scheduling.cells import CellState
from gyre_engine.scheduling.life import LONGEST_EXPORT_S

NOTHING: Mapping[str, int] = MappingProxyType({})
FORGET = 0.98
"""Weight of what was measured one measurement ago: machines get busier and calmer."""

FORGIVE = 0.9
"""Weight of what a failed move took one drain later: what broke may be mended, and only another move tells."""
SHORTEST_WAIT_S = 2.0
"""For KV that moves, however cheap its prefill is said to be: events need a moment too."""


@dataclass(frozen=True, slots=True)
class Fit:
    """Least squares of (p * u + q * v) / y = 1 over what was added, the older the less. Sums of the normal equations."""

    uu: float = 0.0
    uv: float = 0.0
    vv: float = 0.0
    uy: float = 0.0
    vy: float = 0.0

    def add(self, u: float, v: float, y: float) -> Fit:
        """With one measurement more; one of no duration says nothing."""
        if y <= 0:
            return self
        keep, u, v = FORGET, u / y, v / y
        return Fit(keep * self.uu + u * u, keep * self.uv + u * v, keep * self.vv + v * v, keep * self.uy + u, keep * self.vy + v)

    def predict(self, u: float, v: float) -> float:
        """y at (u, v): never below 0, and never by a negative slope."""
        p, q = self._solution()
        return p * u + q * v

    def _solution(self) -> tuple[float, float]:
        determinant = self.uu * self.vv - self.uv * self.uv
        if determinant > 1e-9 * self.uu * self.vv:
            p = (self.uy * self.vv - self.vy * self.uv) / determinant
            q = (self.vy * self.uu - self.uy * self.uv) / determinant
            if p >= 0 and q >= 0:
                return p, q
        along_u, along_v = self.uy / self.uu if self.uu else 0.0, self.vy / self.vv if self.vv else 0.0
        return (max(along_u, 0.0), 0.0) if self._misses(along_u, 0.0) <= self._misses(0.0, along_v) else (0.0, max(along_v, 0.0))

    def _misses(self, p: float, q: float) -> float:
        """The summed squares of what p and q leave over, but for a constant."""
        return p * p * self.uu + 2 * p * q * self.uv + q * q * self.vv - 2 * p * self.uy - 2 * q * self.vy


@dataclass(frozen=True, slots=True)
class KvCosts:
    """What moves and prefills have cost so far. Before there is a measurement of either, a move is tried, to have one.

    per_token: bytes of KV a token; 0 before the first export
    arrived:   moves whose KV arrived, the older the less
    lost_s:    what the others took, the older the less
    """

    moves: Fit = field(default_factory=Fit)
    prefills: Fit = field(default_factory=Fit)
    per_token: float = 0.0
    arrived: float = 0.0
    lost_s: float = 0.0
    _exported_us: tuple[tuple[str, int], ...] = ()

    def observe(self, event: Event) -> KvCosts:
        """The costs after an event of `cells`."""
        match event:
            case KvExported() if event.tokens:
                kept = (*self._exported_us[-63:], (event.rid, event.took_us))
                return replace(self, per_token=event.nbytes / event.tokens, _exported_us=kept)
            case KvImported() if event.tokens or event.reason != OTHER_WEIGHTS:
                return self._moved(event, (dict(self._exported_us).get(event.rid, 0) + event.took_us) / 1e6)
            case Drained():
                return replace(self, lost_s=FORGIVE * self.lost_s)
            case CellHealth() if event.prefills:
                fit = self.prefills
                for start, end, took_us in event.prefills:
                    fit = fit.add(end - start, float(end * end - start * start), took_us / 1e6)
                return replace(self, prefills=fit)
            case _:
                return self

    def _moved(self, event: KvImported, took_s: float) -> KvCosts:
        arrived, lost_s = FORGET * self.arrived, FORGET * self.lost_s
        if not event.tokens:
            return replace(self, arrived=arrived, lost_s=lost_s + took_s)
        return replace(self, arrived=arrived + 1.0, lost_s=lost_s, moves=self.moves.add(1.0, event.nbytes, took_s))

    def move_s(self, tokens: int) -> float:
        """Seconds until the destination has the KV of so many tokens."""
        return self.moves.predict(1.0, tokens * self.per_token)

    def prefill_s(self, tokens: int) -> float:
        """Seconds until the destination has computed it."""
        return self.prefills.predict(tokens, float(tokens * tokens))

    def moving_pays(self, tokens: int) -> bool:
        """Whether moving is the faster, failures counted in."""
        if not self.prefills.uu or not (self.moves.uu or self.lost_s):
            return True
        return self.move_s(tokens) + self.lost_s / (self.arrived + 1.0) < self.prefill_s(tokens)

    def wait_s(self, tokens: int) -> float:
        """How long KV on its way is worth waiting for; where nobody tells what prefills take, twice what a move does."""
        worth = self.prefill_s(tokens) if self.prefills.uu else 2 * self.move_s(tokens)
        return min(max(worth, SHORTEST_WAIT_S), LONGEST_EXPORT_S)


def plan_moves(
    drained: Drained,
    cells: Sequence[CellState],
    costs: KvCosts,
    kv: str = "auto",
    *,
    across_versions: bool = False,
    planned: Mapping[str, int] = NOTHING,
    versions: Mapping[str, int] = NOTHING,
) -> tuple[Move, ...]:
    """A destination for each interrupted execution while there is room, those with the longest contexts first.

    cells:    that serve, those first that will longest
    kv:       "auto" by cost, "always", "never"
    across_versions: also to cells that sample with other weights
    planned:  executions on their way to a cell that its last word does not count yet
    versions: that executions were dispatched at: the proxy takes none to a cell that has not loaded them
    """
    room = {cell.cell: cell.capacity - cell.running - cell.waiting - planned.get(cell.cell, 0) for cell in cells}
    moves: list[Move] = []
    chosen: dict[str, CellState] = {}
    for request in sorted(drained.requests, key=lambda one: (-one.tokens, one.rid)):
        version = versions.get(request.execution, 0)
        fits = (cell for cell in cells if room[cell.cell] > 0 and cell.version >= version)
        destination = chosen.get(request.execution) or next(fits, None)
        if destination is None:
            continue
        room[destination.cell] -= request.execution not in chosen
        chosen[request.execution] = destination
        of_use = across_versions or destination.version == drained.weight_version  # learning.md, 9
        with_kv = of_use and _pays(request, costs, kv)
        wait_us = int(1e6 * costs.wait_s(request.tokens)) if with_kv else 0
        moves.append(Move(request.execution, request.rid, destination.cell, with_kv, wait_us))
    return tuple(moves)


def _pays(request: Interrupted, costs: KvCosts, kv: str) -> bool:
    return kv == "always" or (kv == "auto" and costs.moving_pays(request.tokens))

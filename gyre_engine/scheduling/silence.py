"""Which cells have fallen silent, by the clock of whoever listens. The times are given: nothing here reads a clock.

promises  silence is that of one cell while others speak: where nobody does, the log was away, or the listener, and all begin anew
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from gyre_engine.scheduling.cells import Fleet

Word = tuple[str, int]
"""(incarnation, words) of a cell; ("", 0) before its first."""


@dataclass(slots=True)
class Silence:
    """limit_s: how long a cell that has spoken may say nothing; starting_s: how long one may that never has."""

    limit_s: float
    starting_s: float
    _words: dict[str, Word] = field(default_factory=dict)
    _heard: dict[str, float] = field(default_factory=dict)
    _latest: float = 0.0

    def listen(self, fleet: Fleet, expected: Iterable[str], now: float) -> None:
        """Note who has spoken since the last time. expected: cells that must start, whether they have or not."""
        words = dict.fromkeys(expected, ("", 0)) | {name: (s.incarnation, s.words) for name, s in fleet.cells.items()}
        news = [name for name, word in words.items() if self._words.get(name) != word]
        if news and now - self._latest > self.limit_s / 2:
            self._heard = dict.fromkeys(words, now)
        self._heard.update(dict.fromkeys(news, now))
        self._latest, self._words = now if news else self._latest, words

    def fallen(self, fleet: Fleet) -> Mapping[str, float]:
        """Cells that were silent for too long while others spoke, and for how long."""
        found = {name: self._latest - heard for name, heard in self._heard.items()}
        return {n: s for n, s in found.items() if s > self._limit(fleet, n) and not fleet.lost(n) and not fleet.leaves(n)}

    def _limit(self, fleet: Fleet, cell: str) -> float:
        return self.limit_s if cell in fleet.cells else max(self.limit_s, self.starting_s)

"""Whether the overall time-out takes the long executions (learning.md, 4): their ends counted by duration, and an alert where the
longest tenth loses more than the rest. `long_executions_lost` says the same in SQL."""

from __future__ import annotations

from bisect import insort
from dataclasses import dataclass, field

from gyre_engine.events.executions import Discarded, DiscardReason, Finished


@dataclass(frozen=True, slots=True)
class Lost:
    """The longest tenth of the ended executions (one at least) and the rest: how many there are, how many were discarded."""

    longest: int
    longest_lost: int
    rest: int
    rest_lost: int

    @property
    def alert(self) -> bool:
        """The longest tenth loses a larger share than the rest."""
        return self.longest_lost * self.rest > self.rest_lost * self.longest

    def __str__(self) -> str:
        return (
            f"overall time-out: {self.longest_lost} of the longest {self.longest} executions discarded, "
            f"{self.rest_lost} of the other {self.rest}"
        )


@dataclass(slots=True)
class TimeOuts:
    """The fold. An execution counts by its first end; other discards say nothing about time and are left out."""

    ends: list[tuple[int, bool]] = field(default_factory=list)
    """(wall clock in microseconds, whether it was discarded), ascending."""
    _seen: set[str] = field(default_factory=set)
    _alert: str | None = ""
    """None: ends came since it was worked out."""

    def see(self, event: Finished | Discarded) -> None:
        """Take in an end."""
        if event.execution in self._seen:
            return
        self._seen.add(event.execution)
        if isinstance(event, Finished) or event.reason is DiscardReason.OVERALL_TIMEOUT:
            insort(self.ends, (event.wall_us, isinstance(event, Discarded)))
            self._alert = None

    @property
    def lost(self) -> Lost:
        """As it stands."""
        longest = self.ends[-max(1, len(self.ends) // 10) :]
        rest = self.ends[: len(self.ends) - len(longest)]
        return Lost(len(longest), sum(lost for _, lost in longest), len(rest), sum(lost for _, lost in rest))

    @property
    def alert(self) -> str:
        """What to tell a person; empty where there is nothing to tell. Asked at every frame, worked out once an end."""
        if self._alert is None:
            found = self.lost
            self._alert = f"{found}: raise runner.overall_timeout_s, or long work is never trained on" if found.alert else ""
        return self._alert

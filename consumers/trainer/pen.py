"""Writing to the ledger.

writes    training, micro-steps: what the core and the member have to say
promises  a trainer acts again only after it has read back what it wrote
"""

from __future__ import annotations

from collections.abc import Sequence

from consumers.trainer.board import Board
from gyre_engine.events import Event
from gyre_engine.log import Log


class Pen:
    """Appends ledger events of one trainer and knows whether the board has caught up with them."""

    def __init__(self, log: Log, board: Board, timeout: float) -> None:
        self._log, self._board, self._timeout = log, board, timeout
        self._written = -1

    @property
    def dry(self) -> bool:
        """Everything written to `training` was read back."""
        return self._board.position >= self._written

    def write(self, events: Sequence[Event]) -> int:
        """Append in order and wait for the acknowledgements; the offset of the last ledger event. Raises LogUnavailable."""
        for place in self._log.append_all(events, timeout=self._timeout):
            if place.topic == "training":
                self._written = max(self._written, place.offset)
        return self._written

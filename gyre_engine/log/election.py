"""Winning an epoch by the order of the log (log-rules, 8): whoever logs one above the ruling epoch first rules."""

from __future__ import annotations

from collections.abc import Callable

TRIES = 10


class Deposed(RuntimeError):
    """Another holder has a higher epoch: this process must end. The text names both."""


def win(holder: str, propose: Callable[[int], None], ruling: Callable[[], tuple[int, str]]) -> int:
    """The epoch that `holder` won.

    propose: logs an election of this epoch, and returns once it was read back
    ruling:  the epoch that rules by all that was read, and its holder

    Raises Deposed where others keep winning.
    """
    for _ in range(TRIES):
        epoch = ruling()[0] + 1
        propose(epoch)
        if ruling() == (epoch, holder):
            return epoch
    epoch, other = ruling()
    raise Deposed(f"{holder} lost {TRIES} elections, {other} rules with epoch {epoch}: is more than one configured?")

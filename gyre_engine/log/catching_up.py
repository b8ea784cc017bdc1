"""Reading what stands on the log before acting on what comes."""

from __future__ import annotations

import time
from collections.abc import Callable

from gyre_engine.events import Recorded
from gyre_engine.log.port import Follower, LogUnavailable


def catch_up(follower: Follower, take: Callable[[Recorded], None], who: str, limit_s: float = 600.0) -> None:
    """Give `take` everything that stands on the follower's topics now. Raises LogUnavailable naming `who` after `limit_s`."""
    follower.mark_end()
    read_until(follower, take, follower.at_end, f"{who} could not read what stands on the log", limit_s)


def read_until(
    follower: Follower, take: Callable[[Recorded], None], done: Callable[[], bool], what: str, limit_s: float = 60.0
) -> None:
    """Read on until `done`. Raises LogUnavailable with `what` after `limit_s` seconds without it."""
    until = time.monotonic() + limit_s
    while not done():
        if time.monotonic() > until:
            raise LogUnavailable(f"{what} within {limit_s:.0f} s; {follower.lag()} events are unread")
        for record in follower.poll(0.2):
            take(record)

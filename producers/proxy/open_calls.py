"""The calls of one execution that run, and the answers that no client has taken yet: a client that asks again joins them."""

from __future__ import annotations

from collections.abc import Iterator

from producers.proxy.call import Call

UNDELIVERED = 16
"""Answers that nobody took stay until this many newer ones stand beside them."""


class OpenCalls:
    """By the digest of what was asked."""

    def __init__(self) -> None:
        self._by_digest: dict[bytes, Call] = {}

    def __iter__(self) -> Iterator[Call]:
        return iter(list(self._by_digest.values()))

    def joinable(self, digest: bytes) -> Call | None:
        """The call that the same body has asked for already and that no client has had whole."""
        return self._by_digest.get(digest)

    def keep(self, digest: bytes, call: Call) -> None:
        """Note an open call; of answers that nobody took only the newest stay."""
        self._by_digest[digest] = call
        call.forget = lambda: self._drop(digest, call)
        idle = [key for key, other in self._by_digest.items() if other.recorded and not other.listeners]
        for key in idle[:-UNDELIVERED]:
            del self._by_digest[key]

    @property
    def held_us(self) -> int:
        """Microseconds that the agent was held up by calls that are not recorded yet."""
        return sum(call.sampled.held_so_far for call in self if not call.recorded)

    def _drop(self, digest: bytes, call: Call) -> None:
        if self._by_digest.get(digest) is call:
            del self._by_digest[digest]

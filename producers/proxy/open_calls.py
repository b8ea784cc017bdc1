"""The calls of one execution that run, and the answers that no client has taken yet: a client that asks again joins them."""

from __future__ import annotations

from collections.abc import Iterator

from producers.proxy.shared_call import SharedCall, nothing

UNDELIVERED = 16
"""Answers that nobody took stay until this many newer ones stand beside them."""


class OpenCalls:
    """By the digest of what was asked."""

    def __init__(self) -> None:
        self._by_digest: dict[bytes, SharedCall] = {}

    def __iter__(self) -> Iterator[SharedCall]:
        return iter(list(self._by_digest.values()))

    def joinable(self, digest: bytes) -> SharedCall | None:
        """The call that the same body has asked for already and that no client has had whole."""
        return self._by_digest.get(digest)

    def keep(self, digest: bytes, call: SharedCall) -> None:
        """Note an open call; of answers that nobody took only the newest stay."""
        self._by_digest[digest] = call
        call.forget = lambda: self._drop(digest, call)
        idle = [key for key, other in self._by_digest.items() if other.recorded and not other.listeners]
        for key in idle[:-UNDELIVERED]:
            self._drop(key, self._by_digest[key])

    @property
    def held_us(self) -> int:
        """Microseconds that the agent was held up by calls that are not recorded yet."""
        return sum(call.held_us for call in self)

    def _drop(self, digest: bytes, call: SharedCall) -> None:
        call.forget = nothing  # a call that is done with holds on to nothing: it and its history go at once
        if self._by_digest.get(digest) is call:
            del self._by_digest[digest]

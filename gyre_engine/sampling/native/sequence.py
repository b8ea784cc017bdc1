"""One request inside the native engine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from gyre_engine.experts import NO_ROWS, UNKNOWN, Rows
from gyre_engine.sampling.port import Chunk, FinishReason, SamplingParams

Deliver = Callable[[Chunk], None]


@dataclass(slots=True, eq=False)
class Sequence:
    """Input and output ids in one list, and how far the KV in its slot reaches.

    key:       starts its random numbers
    limit:     how long ids may become
    computed:  tokens whose KV is in the slot, under the current weights
    sent:      output ids delivered
    prefill_s: seconds of computing from `prefill_from` tokens on to its first one to be sampled, the last time
    routed:    the experts of the tokens computed so far, `width` bytes each: those of the first time that each was computed
    routed_from: see GenerateRequest
    """

    rid: str
    ids: list[int]
    params: SamplingParams
    key: int
    limit: int
    deliver: Deliver
    inputs: int = 0
    computed: int = 0
    sent: int = 0
    cached_tokens: int | None = None
    logprobs: list[float] = field(default_factory=list)
    stops: frozenset[int] = frozenset()
    streamed: bool = True
    prefill_from: int = 0
    prefill_s: float = 0.0
    routed_from: int | None = None
    routed: bytearray = field(default_factory=bytearray)
    width: int = 0

    def __post_init__(self) -> None:
        self.inputs = len(self.ids)
        self.limit = min(self.limit, self.inputs + self.params.max_tokens)
        self.stops = frozenset(self.params.stop_token_ids)

    @property
    def sampled(self) -> int:
        """How many ids were sampled."""
        return len(self.ids) - self.inputs

    def add(self, token: int, logprob: float) -> FinishReason | None:
        """Append a sampled id; why the sequence ends with it, if it does."""
        self.ids.append(token)
        self.logprobs.append(logprob)
        if token in self.stops:
            return FinishReason.STOP
        return FinishReason.LENGTH if len(self.ids) >= self.limit else None

    def note(self, start: int, rows: Rows) -> None:
        """The tokens from `start` on were routed to these experts."""
        if self.width:
            self.routed += rows[len(self.routed) // self.width - start :].tobytes()

    @property
    def rows(self) -> Rows:
        """All that was noted."""
        return np.frombuffer(bytes(self.routed), dtype=np.uint8).reshape(-1, self.width) if self.width else NO_ROWS

    def _answered_rows(self) -> bytes:
        """Of the tokens from `routed_from` on, but for the last one, which is computed by whoever goes on from it."""
        if self.routed_from is None or not self.width:
            return b""
        first, last = (self.width * at for at in (self.routed_from, max(self.routed_from, len(self.ids) - 1)))
        return bytes(self.routed[first:last]).ljust(last - first, bytes([UNKNOWN]))

    def send(self, version: str, reason: FinishReason | None = None) -> None:
        """Deliver what was sampled since the last time; nothing where there is nothing to say."""
        if self.sampled == self.sent and reason is None:
            return
        ids, logprobs = self.ids[self.inputs + self.sent :], self.logprobs[self.sent :]
        self.sent = self.sampled
        routed = self._answered_rows() if reason is not None else b""
        self.deliver(Chunk(tuple(ids), tuple(logprobs), version, reason, self.cached_tokens or 0, routed=routed))

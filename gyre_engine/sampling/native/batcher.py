"""Continuous batching: what is computed next, without threads or clocks.

promises  one call of `step` prefills at most one chunk and gives every running sequence one token; a sequence without room is put back
          and computed again later, its ids kept; KV in slots and cache together stay within the capacity; no KV outlives its weights,
          unless the engine is to keep it.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from gyre_engine.experts import NO_ROWS, Rows, unknown
from gyre_engine.sampling.kv import KvPages
from gyre_engine.sampling.native.model import Model
from gyre_engine.sampling.native.prefix import PrefixCache
from gyre_engine.sampling.native.sampler import Plan, sample, uniforms
from gyre_engine.sampling.native.sequence import Sequence
from gyre_engine.sampling.native.shape import ModelShape
from gyre_engine.sampling.native.slots import Slots
from gyre_engine.sampling.native.weights import Weights
from gyre_engine.sampling.port import EngineStats, FinishReason

HEADROOM = 64  # tokens that a sequence should find free beyond its own when it is admitted, so that it is not put back at once

PREFILLS, WORTH_TELLING = 16, 32  # how many of the newest prefills the stats tell, and of how many tokens at least


@dataclass(frozen=True, slots=True)
class Limits:
    """max_batch: sequences at once. max_context, kv_capacity: tokens. prefill_chunk: tokens prefilled between two decode steps."""

    max_batch: int = 64
    max_context: int = 4096
    kv_capacity: int = 131072
    prefill_chunk: int = 512

    @property
    def longest(self) -> int:
        """How long one sequence may become."""
        return min(self.max_context, self.kv_capacity)


class Batcher:
    """The state of an engine: waiting, one that prefills, and the running ones, whose place in `running` is their slot.

    keep_kv: KV is gone on from under whatever weights (learning.md 9, `kv.across_versions`)
    """

    def __init__(self, shape: ModelShape, weights: Weights, version: str, limits: Limits, *, keep_kv: bool = False) -> None:
        self.shape, self.limits, self.version = shape, limits, version
        self.keep_kv, self._kept = keep_kv, 0
        self.model = Model(shape, weights, limits.longest)
        self.slots = Slots(shape, limits.max_batch, limits.longest)
        self.cache = PrefixCache(shape, limits.kv_capacity)
        self.waiting: deque[Sequence] = deque()
        self.prefilling: Sequence | None = None
        self.running: list[Sequence] = []
        self._plan: tuple[Plan, np.ndarray[tuple[int], np.dtype[np.uint64]]] | None = None
        self._generated = self._prefilled = self._hits = 0
        self._width = shape.experts.width if shape.experts else 0
        self._prefills: deque[tuple[int, int, int]] = deque(maxlen=PREFILLS)

    @property
    def busy(self) -> bool:
        """Whether `step` has something to do."""
        return bool(self.running or self.prefilling or self.waiting)

    @property
    def in_flight(self) -> list[Sequence]:
        """All that was submitted and has not ended."""
        return [*self.running, *([self.prefilling] if self.prefilling else []), *self.waiting]

    def submit(self, sequence: Sequence) -> None:
        """Queue a request."""
        sequence.width = self._width
        self.waiting.append(sequence)

    def step(self) -> None:
        """Admit, prefill one chunk, decode one token each."""
        self._prefill()
        self._make_room()
        if self.running:
            self._decode()

    def flush(self, *, all_of_it: bool = True) -> None:
        """Deliver what has been sampled and not been sent, to those who want it as it comes or to all."""
        for sequence in self.running:
            if all_of_it or sequence.streamed:
                sequence.send(self.version)

    def abort(self, wanted: Callable[[Sequence], bool]) -> None:
        """End the sequences that are wanted, keeping what they sampled."""
        for sequence in [s for s in self.waiting if wanted(s)]:
            self.waiting.remove(sequence)
            sequence.send(self.version, FinishReason.ABORT)
        if self.prefilling and wanted(self.prefilling):
            sequence, self.prefilling = self.prefilling, None
            self._keep(sequence, len(self.running))
            sequence.send(self.version, FinishReason.ABORT)
        for sequence in [s for s in self.running if wanted(s)]:
            self._leave(sequence)
            sequence.send(self.version, FinishReason.ABORT)

    def swap(self, weights: Weights, version: str) -> None:
        """Go on under other weights, after what the old ones made was delivered."""
        self.flush()
        if self.keep_kv:
            self._kept = self.cache.tokens + sum(sequence.computed for sequence in self.in_flight)
        else:
            self._forget()
        self.model, self.version = Model(self.shape, weights, self.limits.longest), version

    def _forget(self) -> None:
        """All KV: it is computed again before the next token."""
        again = [*self.running, *([self.prefilling] if self.prefilling else [])]
        for sequence in again:
            sequence.computed = 0
        self.waiting.extendleft(reversed(again))
        self.running, self.prefilling, self._plan = [], None, None
        self.cache.clear()

    def score(self, ids: list[int], reuse: int = 0) -> list[float]:
        """Log-probabilities of ids[1:], with KV of its own; the first `reuse` ids are in the cache afterwards, and those that were
        before are not scored.
        """
        slot, reuse = Slots(self.shape, 1, len(ids)), max(0, min(reuse, len(ids) - 1))
        rows = unknown(len(ids), self._width)
        begin = self.cache.fill(ids[:reuse], slot.of(0), rows)
        scores: list[float] = []
        for start in range(begin, len(ids) - 1, self.limits.prefill_chunk):
            end = min(start + self.limits.prefill_chunk, len(ids) - 1)
            hidden, rows[start:end] = self._compute(ids, start, end, slot, 0)
            logprobs = self.model.logits(hidden).log_softmax(dim=-1)
            scores += logprobs.gather(1, torch.tensor(ids[start + 1 : end + 1])[:, None])[:, 0].tolist()
        if reuse:
            self._store(ids[:reuse], slot.of(0), rows)
        return scores

    def export(self, ids: list[int]) -> KvPages:
        """A copy of what the cache holds of a prefix."""
        slot = Slots(self.shape, 1, max(1, len(ids))).of(0)
        length = self.cache.fill(ids, slot)
        return KvPages(self.version, slot[:, :, :, :length].contiguous().numpy())

    def take(self, ids: list[int], pages: KvPages) -> int:
        """Cache what another engine computed for the first of these ids, under the same weights unless KV is kept across them."""
        tokens = pages.tokens
        if pages.data.shape != (self.shape.layers, 2, self.shape.kv_heads, tokens, self.shape.head_dim) or tokens > len(ids):
            raise ValueError(f"KV of shape {pages.data.shape} does not fit this model and {len(ids)} ids: export it for them")
        if pages.weight_version != self.version and not self.keep_kv:
            return 0
        self._store(ids[:tokens], torch.from_numpy(pages.data))
        return tokens

    def stats(self, *, paused: bool) -> EngineStats:
        """Counts as they stand."""
        return EngineStats(
            running=len(self.running) + (self.prefilling is not None),
            waiting=len(self.waiting),
            kv_tokens_used=self._live() + self.cache.tokens,
            kv_tokens_capacity=self.limits.kv_capacity,
            generated_tokens=self._generated,
            prefill_tokens=self._prefilled,
            cache_hit_tokens=self._hits,
            weight_version=self.version,
            max_context=self.limits.longest,
            paused=paused,
            prefills=tuple(self._prefills),
            kept_kv=self._kept,
        )

    def _live(self) -> int:
        """Tokens that slots hold, or will within this step."""
        prefilling = len(self.prefilling.ids) if self.prefilling else 0
        return sum(len(sequence.ids) for sequence in self.running) + prefilling

    def _prefill(self) -> None:
        """Compute up to a chunk of all but the last token of those who wait: the last one is computed by the decode step."""
        budget = self.limits.prefill_chunk
        while budget > 0 and (self.prefilling or self._admit()):
            sequence = self.prefilling
            assert sequence is not None
            end = min(sequence.computed + budget, len(sequence.ids) - 1)
            if end > sequence.computed:
                began = time.monotonic()
                _, rows = self._compute(sequence.ids, sequence.computed, end, self.slots, len(self.running))
                sequence.note(sequence.computed, rows)
                sequence.prefill_s += time.monotonic() - began
            budget -= end - sequence.computed
            self._prefilled += end - sequence.computed
            sequence.computed = end
            if end == len(sequence.ids) - 1:
                self._start(sequence)

    def _start(self, sequence: Sequence) -> None:
        """From prefill to decode; what was computed serves the others of its group at once."""
        self._keep(sequence, len(self.running))
        if sequence.computed - sequence.prefill_from >= WORTH_TELLING:
            self._prefills.append((sequence.prefill_from, sequence.computed, int(sequence.prefill_s * 1e6)))
        self.prefilling, self._plan = None, None
        self.running.append(sequence)

    def _admit(self) -> bool:
        """Give the first who waits a slot and what the cache holds of it, if there is room for it and some output."""
        if not self.waiting or len(self.running) >= self.limits.max_batch:
            return False
        sequence = self.waiting[0]
        need = len(sequence.ids) + min(HEADROOM, sequence.limit - len(sequence.ids))
        if self.running and self._live() + need > self.limits.kv_capacity:
            return False
        self.prefilling = self.waiting.popleft()
        rows = unknown(len(sequence.ids), self._width)
        hit = self.cache.fill(sequence.ids[:-1], self.slots.of(len(self.running)), rows)
        sequence.note(0, rows[:hit])
        sequence.computed = sequence.prefill_from = hit
        sequence.prefill_s = 0.0
        if sequence.cached_tokens is None:
            sequence.cached_tokens = hit
        self._hits += hit
        return True

    def _make_room(self) -> None:
        """Room for one more token each: from the cache first, then by putting back the ones that came last."""
        while len(self.running) + bool(self.prefilling) > 1 and self._live() + len(self.running) > self.limits.kv_capacity:
            self._put_back()
        self.cache.shrink(max(0, self.limits.kv_capacity - self._live() - len(self.running)))

    def _put_back(self) -> None:
        if self.prefilling:
            sequence, self.prefilling = self.prefilling, None
        else:
            sequence, self._plan = self.running.pop(), None
        sequence.send(self.version)
        sequence.computed = 0
        self.waiting.appendleft(sequence)

    def _compute(self, ids: list[int], start: int, end: int, slots: Slots, slot: int) -> tuple[torch.Tensor, Rows]:
        tokens = torch.tensor(ids[start:end])
        return self.model.hidden(tokens, torch.arange(start, end), slots.prefill(slot, start, end))

    def _decode(self) -> None:
        running = self.running
        tokens = torch.tensor([sequence.ids[-1] for sequence in running])
        lengths = torch.tensor([len(sequence.ids) - 1 for sequence in running])
        hidden, rows = self.model.hidden(tokens, lengths, self.slots.decode(lengths))
        for number, sequence in enumerate(running if self._width else ()):
            sequence.note(sequence.computed, rows[number : number + 1])
        plan, keys = self._plan_of_running()
        indices = np.array([sequence.sampled for sequence in running], dtype=np.uint64)
        ids, logprobs = sample(self.model.logits(hidden), plan, torch.from_numpy(uniforms(keys, indices)))
        self._generated += len(running)
        self._take_in(ids.tolist(), logprobs.tolist())

    def _take_in(self, ids: list[int], logprobs: list[float]) -> None:
        ended: list[tuple[Sequence, FinishReason]] = []
        for sequence, token, logprob in zip(self.running, ids, logprobs, strict=True):
            sequence.computed += 1
            reason = sequence.add(token, logprob)
            if reason is not None:
                ended.append((sequence, reason))
        for sequence, reason in ended:
            self._leave(sequence)
            sequence.send(self.version, reason)

    def _plan_of_running(self) -> tuple[Plan, np.ndarray[tuple[int], np.dtype[np.uint64]]]:
        if self._plan is None:
            keys = np.array([sequence.key for sequence in self.running], dtype=np.uint64)
            self._plan = Plan.of([sequence.params for sequence in self.running]), keys
        return self._plan

    def _leave(self, sequence: Sequence) -> None:
        """Keep the KV, and close the gap: the last running one moves into the slot, a prefilling one behind it."""
        slot, last = self.running.index(sequence), len(self.running) - 1
        moved = self.running.pop()
        if slot != last:
            self.running[slot] = moved
        self._keep(sequence, slot)
        if slot != last:
            self.slots.move(last, slot, moved.computed)
        if self.prefilling:
            self.slots.move(last + 1, last, self.prefilling.computed)
        self._plan = None

    def _keep(self, sequence: Sequence, slot: int) -> None:
        self._store(sequence.ids[: sequence.computed], self.slots.of(slot), sequence.rows)

    def _store(self, ids: list[int], of: torch.Tensor, rows: Rows = NO_ROWS) -> None:
        self.cache.store(ids, of, max(0, self.limits.kv_capacity - self._live()), rows)

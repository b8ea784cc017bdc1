"""The prefix cache against a plain model of it: a list of sequences, of which the longest shared prefix is looked up."""

from __future__ import annotations

from dataclasses import replace

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from gyre_engine.sampling.native.fresh import QUICKSTART
from gyre_engine.sampling.native.prefix import BLOCK, PrefixCache

SHAPE = replace(QUICKSTART, layers=1, kv_heads=1, head_dim=2)
LONGEST = 80


def kv_of(ids: list[int]) -> Tensor:
    """KV that tells its whole prefix, as real KV does: [layers, 2, kv_heads, context, head_dim]."""
    kv = torch.full((1, 2, 1, LONGEST, 2), -1.0)
    for at in range(len(ids)):
        kv[:, :, :, at] = float(hash(tuple(ids[: at + 1])) % 10007)
    return kv


def shared(one: list[int], other: list[int]) -> int:
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


# Few symbols and a few stems, so that sequences share prefixes, branch inside blocks and extend each other.
tails = st.lists(st.integers(0, 1), max_size=40)
sequences = st.builds(lambda stem, tail: [stem] * 20 + tail, st.integers(0, 1), tails) | tails


@settings(max_examples=150, deadline=None)
@given(stored=st.lists(sequences, max_size=8), asked=sequences)
def test_the_longest_stored_prefix_is_found_with_its_own_kv(stored: list[list[int]], asked: list[int]) -> None:
    cache = PrefixCache(SHAPE, 4096)
    for ids in stored:
        cache.store(ids, kv_of(ids), 4096)
    slot = torch.zeros(1, 2, 1, LONGEST, 2)
    length = cache.fill(asked, slot)
    assert length == max((shared(ids, asked) for ids in stored), default=0)
    assert torch.equal(slot[:, :, :, :length], kv_of(asked)[:, :, :, :length])


@settings(max_examples=150, deadline=None)
@given(stored=st.lists(sequences, max_size=12), room=st.integers(0, 100), asked=sequences)
def test_eviction_keeps_within_the_room_and_what_is_left_is_right(stored: list[list[int]], room: int, asked: list[int]) -> None:
    cache = PrefixCache(SHAPE, 128)
    for ids in stored:
        cache.store(ids, kv_of(ids), room)
        assert cache.tokens <= room
    slot = torch.zeros(1, 2, 1, LONGEST, 2)
    length = cache.fill(asked, slot)
    assert length <= max((shared(ids, asked) for ids in stored), default=0)
    assert torch.equal(slot[:, :, :, :length], kv_of(asked)[:, :, :, :length])


def test_a_shared_prefix_is_stored_once() -> None:
    cache = PrefixCache(SHAPE, 4096)
    stem = list(range(32))
    for tail in range(5):
        cache.store([*stem, 100 + tail], kv_of([*stem, 100 + tail]), 4096)
    assert cache.tokens == 32 + 5


def test_the_least_recently_used_leaves_first() -> None:
    cache = PrefixCache(SHAPE, 4096)
    for start in (0, 100, 200):
        cache.store(list(range(start, start + BLOCK)), kv_of(list(range(start, start + BLOCK))), 4096)
    slot = torch.zeros(1, 2, 1, LONGEST, 2)
    assert cache.fill(list(range(BLOCK)), slot) == BLOCK  # the oldest is used again
    cache.shrink(2 * BLOCK)
    assert cache.fill(list(range(100, 100 + BLOCK)), slot) == 0
    assert cache.fill(list(range(BLOCK)), slot) == BLOCK
    assert cache.fill(list(range(200, 200 + BLOCK)), slot) == BLOCK


def test_a_tail_grows_where_it_lies() -> None:
    cache = PrefixCache(SHAPE, 4096)
    for end in (5, 9, 16, 21):
        cache.store(list(range(end)), kv_of(list(range(end))), 4096)
        assert cache.tokens == end


def test_clear_forgets_everything() -> None:
    cache = PrefixCache(SHAPE, 4096)
    cache.store(list(range(40)), kv_of(list(range(40))), 4096)
    cache.clear()
    assert cache.tokens == 0
    assert cache.fill(list(range(40)), torch.zeros(1, 2, 1, LONGEST, 2)) == 0

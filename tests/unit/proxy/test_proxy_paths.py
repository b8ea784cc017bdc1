"""Paths by deltas: found, put together and hashed as if each were kept whole."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from gyre_engine.trees.path import EMPTY, ROOT_HASH, Paths, Stretch, call_id, extend_hash

tokens = st.lists(st.integers(0, 2), max_size=8)


def shared(a: list[int], b: list[int]) -> int:
    return next((at for at, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


@settings(deadline=None)
@given(calls=st.lists(st.tuples(tokens.filter(bool), tokens), min_size=1, max_size=12), wanted=tokens)
def test_the_longest_known_prefix_is_that_of_whole_paths(calls: list[tuple[list[int], list[int]]], wanted: list[int]) -> None:
    paths, whole = Paths(), dict[str, list[int]]()
    for number, (prompt, output) in enumerate(calls):
        at, taken = paths.extend(EMPTY, np.asarray(prompt, dtype=np.int32))
        assert taken == max((shared(path, prompt) for path in whole.values()), default=0)
        new, sampled = (np.asarray(ids, dtype=np.int32) for ids in (prompt[taken:], output))
        name = call_id("e", at.call, paths.hash(at), new, sampled, number)
        paths.add(Stretch(name, at.call, at.length, paths.hash(at), np.concatenate([new, sampled]), len(new)))
        whole[name] = prompt + output
    for name, path in whole.items():
        stretch = paths.stretches[name]
        assert stretch.end == len(path) and paths.ids(paths.cut(name, len(path))).tolist() == path
        for length in range(1, len(path) + 1):
            cut = paths.cut(name, length)
            holder = paths.stretches[cut.call or ""]
            assert holder.prefix_len < length <= holder.end
            assert paths.ids(cut, length // 2).tolist() == path[length // 2 : length]
    found, taken = paths.extend(EMPTY, np.asarray(wanted, dtype=np.int32))
    assert taken == max(shared(path, wanted) for path in whole.values())
    assert paths.ids(found).tolist() == wanted[:taken]


def test_the_hash_chains_from_delta_to_delta() -> None:
    import hashlib

    first, second = np.asarray([1, 2, 3], dtype=np.int32), np.asarray([4], dtype=np.int32)
    one = hashlib.blake2b(bytes(16) + first.astype("<i4").tobytes(), digest_size=16).digest()
    two = hashlib.blake2b(one + second.astype("<i4").tobytes(), digest_size=16).digest()
    assert extend_hash(ROOT_HASH, first) == one and extend_hash(one, second) == two
    assert extend_hash(one, second[:0]) == one


def test_another_number_or_output_is_another_call() -> None:
    ids = np.asarray([1, 2], dtype=np.int32)
    names = {
        call_id("e", None, ROOT_HASH, ids, ids, 0),
        call_id("f", None, ROOT_HASH, ids, ids, 0),
        call_id("e", None, ROOT_HASH, ids, ids, 1),
        call_id("e", None, ROOT_HASH, ids, ids[:1], 0),
        call_id("e", "x", ROOT_HASH, ids, ids, 0),
        call_id("e", None, ROOT_HASH, ids[:1], np.asarray([2, 1, 2], dtype=np.int32), 0),
    }
    assert len(names) == 6

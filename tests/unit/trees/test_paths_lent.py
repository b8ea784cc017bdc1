"""Prompts that are handed out as one array: equal to the path they stand for, and never changed by what comes later."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gyre_engine.trees.path import EMPTY, Paths, Stretch

IDS = st.lists(st.integers(0, 3), max_size=5)


def array(ids: list[int]) -> np.ndarray:
    return np.array(ids, dtype=np.int32)


@given(st.data())
def test_what_is_lent_is_the_path_and_stays_so(data: st.DataObject) -> None:
    paths, whole, lent = Paths(), dict[str, list[int]](), list[tuple[np.ndarray, list[int]]]()
    for number in range(data.draw(st.integers(1, 12))):
        parent = data.draw(st.sampled_from([None, *whole]))
        length = data.draw(st.integers(0, len(whole[parent]))) if parent else 0
        at = paths.cut(parent, length) if parent else EMPTY
        new, output = data.draw(IDS), data.draw(IDS)
        prompt = [*whole[parent][:length], *new] if parent else list(new)
        lent.append((paths.followed_by(at, array(new)), prompt))
        if data.draw(st.booleans()):
            name = f"c{number}"
            paths.add(Stretch(name, at.call, at.length, b"", array([*new, *output]), len(new)))
            whole[name] = [*prompt, *output]
        for prompt_ids, expected in lent:
            assert prompt_ids.tolist() == expected


def test_going_on_at_the_end_copies_nothing_that_stands() -> None:
    paths = Paths()
    paths.add(Stretch("a", None, 0, b"", np.arange(100_000, dtype=np.int32), 10))
    first = paths.followed_by(paths.cut("a", 100_000), array([7]))
    paths.add(Stretch("b", "a", 100_000, b"", array([7, 8]), 1))
    second = paths.followed_by(paths.cut("b", 100_002), array([9]))
    assert np.shares_memory(first, second) and not second.flags.writeable
    assert second.tolist()[-4:] == [99_999, 7, 8, 9]

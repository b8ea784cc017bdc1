"""A micro-step in parts: the same targets, each with the path that it had, and parts of about the same size."""

from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from gyre_engine.batching import ExecutionWork, Segment, pack
from gyre_engine.training.ranks.splitting import joined, split
from tests.unit.batching.test_packing import forests


def seen(step):
    """Of every target: all that a loss sees of it, and the ids of its path by the rule `j <= i < end[j]`."""
    named = {i: name for name, first, count in step.executions for i in range(first, first + count)}
    assert sorted(named) == list(range(step.targets))
    rows = range(step.tokens)
    for index, (source, token) in enumerate(zip(step.src, step.dst, strict=True)):
        path = tuple(int(step.ids[j]) for j in rows if j <= source < step.end[j])
        place = int(step.position[source])
        facts = tuple(float(values[index]) for values in (step.logprobs, step.versions, step.weight, step.share, step.reference))
        yield named[index], path, place, int(step.ids[token]), facts


def together(step):
    """Which targets are of one trajectory."""
    groups = {}
    for name, first, count in step.executions:
        for index in range(first, first + count):
            groups.setdefault(int(step.sequence[index]), []).append((name, int(step.ids[step.dst[index]])))
    assert sorted(groups) == list(range(len(groups)))
    return sorted(map(sorted, groups.values()))


@settings(deadline=None)
@given(forests(), st.integers(1, 4))
def test_parts_hold_every_target_once_with_its_path_and_its_trajectory(works, parts):
    for plain in pack(works, 40):
        step = replace(plain, reference=-np.arange(plain.targets, dtype=np.float32))
        found = split(step, parts)
        assert joined(step, parts, [part.reference for part in found]).tolist() == step.reference.tolist()
        assert {len(part.reference) for part in split(plain, parts)} == {0}
        assert 1 <= len(found) <= parts
        assert sum(part.tokens for part in found) == step.tokens
        assert sorted(each for part in found for each in seen(part)) == sorted(seen(step))
        assert sorted(group for part in found for group in together(part)) == together(step)


def test_the_largest_trees_go_apart():
    """Trees of 9, 7, 5 and 3 tokens for two: 9 + 3 and 7 + 5."""
    works = [
        ExecutionWork(
            execution=f"e{size}", segments=(Segment(np.arange(size, dtype=np.int32), -1),),
            trained=np.array([size - 1], dtype=np.int32),
            logprobs=np.zeros(1, dtype=np.float32), versions=np.ones(1, dtype=np.int32), advantage=1.0, trained_tokens=1,
            sequences=np.zeros(1, dtype=np.int32),
        )
        for size in (9, 7, 5, 3)
    ]  # fmt: skip
    (step,) = pack(works, 100)
    assert [[name for name, _, _ in part.executions] for part in split(step, 2)] == [["e9", "e3"], ["e7", "e5"]]
    assert split(step, 1) == [step]
    assert len(split(step, 9)) == 4

"""Figures of an evaluation, worked by hand."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from producers.runner.report import interval, pass_at, report


def test_the_mean_is_over_tasks_and_failures_count_apart() -> None:
    """Task means 0.5 and 1.0 (the third has no score): mean 0.75, standard error 0.25, 0.75 +- 0.49, cut at 1."""
    found = report("v001-val", "val", 1, {"a": [0.0, 1.0], "b": [1.0], "c": []}, failed=3)
    assert (found.episodes, found.failed, found.mean) == (3, 3, 0.75)
    assert (found.low, found.high) == (pytest.approx(0.26), 1.0)


def test_one_task_tells_nothing_about_the_interval() -> None:
    assert interval([0.3], (0.0, 1.0)) == (0.0, 1.0)


def test_an_evaluation_without_any_score() -> None:
    found = report("v001-val", "val", 1, {"a": []}, failed=1)
    assert (found.episodes, found.mean, found.low, found.high, found.pass_at_k) == (0, 0.0, 0.0, 1.0, {})


@given(st.lists(st.booleans(), min_size=1, max_size=6), st.integers(0, 2))
def test_pass_at_k_is_the_share_of_subsets_with_a_pass(passes: list[bool], power: int) -> None:
    k = 2**power
    found = pass_at({"t": [float(p) for p in passes]})
    if k > len(passes):
        assert str(k) not in found
        return
    subsets = list(itertools.combinations(passes, k))
    assert math.isclose(found[str(k)], sum(any(s) for s in subsets) / len(subsets))

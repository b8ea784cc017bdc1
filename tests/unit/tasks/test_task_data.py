"""The order of draws: weights, epochs, resumption, filters; and splits that do not overlap."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gyre_engine.tasks import FILTERS, DataError, DrawOrder, Source, TaskError, draw, load_catalog


def write(folder: Path, name: str, instruction: str = "") -> Path:
    task = folder / name
    (task / "tests").mkdir(parents=True)
    (task / "task.toml").write_text("")
    (task / "instruction.md").write_text(instruction or f"Do {folder.name}/{name}.")
    (task / "tests" / "test.sh").write_text("#!/bin/sh\n")
    return task


@pytest.fixture
def two(tmp_path: Path) -> tuple[Source, ...]:
    for source, count in (("a", 3), ("b", 4)):
        for number in range(count):
            write(tmp_path / source, f"t{number}")
    return (Source("a", tmp_path / "a", weight=3.0), Source("b", tmp_path / "b", weight=1.0))


def test_sources_are_drawn_by_weight_and_each_epoch_is_a_permutation(two: tuple[Source, ...]) -> None:
    """16 draws at 3 : 1 are 12 and 4: four epochs of the three tasks of a, one of the four of b."""
    order = DrawOrder(load_catalog(two), "train", seed=1)
    draws = [order.at(n) for n in range(16)]
    assert Counter(d.source for d in draws) == {"a": 12, "b": 4}
    for epoch in range(4):
        assert sorted(d.query for d in draws if d.source == "a" and d.epoch == epoch) == ["t0", "t1", "t2"]
    assert sorted(d.query for d in draws if d.source == "b") == ["t0", "t1", "t2", "t3"]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=20)
@given(st.integers(0, 5), st.integers(0, 60))
def test_a_position_gives_the_same_task_for_ever(two: tuple[Source, ...], seed: int, position: int) -> None:
    catalog = load_catalog(two)
    straight = [DrawOrder(catalog, "train", seed).at(n) for n in range(position + 1)]
    assert DrawOrder(catalog, "train", seed).at(position) == straight[-1]
    assert [d.position for d in straight] == list(range(position + 1))


def test_seeds_differ(two: tuple[Source, ...]) -> None:
    catalog = load_catalog(two)
    orders = {tuple(DrawOrder(catalog, "train", seed).at(n).query for n in range(12)) for seed in range(5)}
    assert len(orders) > 1


def test_the_pass_rate_filter_leaves_out_what_teaches_nothing(two: tuple[Source, ...]) -> None:
    order = DrawOrder(load_catalog(two), "train", seed=1)
    first = order.at(0)
    keep = FILTERS["pass-rate"]
    assert draw(order, 0, {}, keep) == first
    assert draw(order, 0, {(first.source, first.query): 0.5}, keep) == first
    for rate in (0.0, 1.0):
        assert draw(order, 0, {(first.source, first.query): rate}, keep).position == 1
    all_solved = {(s, f"t{n}"): 1.0 for s in "ab" for n in range(4)}
    assert draw(order, 5, all_solved, keep) == order.at(5)
    assert draw(order, 0, {(first.source, first.query): 0.0}, FILTERS["none"]) == first


def test_a_task_in_two_splits_is_refused_whatever_it_is_called(tmp_path: Path) -> None:
    write(tmp_path / "train", "x", "the same")
    write(tmp_path / "val", "y", "the same\n")
    with pytest.raises(TaskError, match=r"val/y \(val\) is the same task as .*train/x \(train\)"):
        load_catalog([Source("a", tmp_path / "train"), Source("b", tmp_path / "val", "val")])


def test_errors_name_the_source(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match=r"source 'a'.*has no task folders"):
        load_catalog([Source("a", tmp_path / "empty")])
    with pytest.raises(DataError, match=r"source 'a'.*is not a folder"):
        load_catalog([Source("a", tmp_path / "nowhere")])
    write(tmp_path / "t", "x")
    with pytest.raises(DataError, match="named 'a'"):
        load_catalog([Source("a", tmp_path / "t"), Source("a", tmp_path / "t")])
    with pytest.raises(DataError, match="split must be one of"):
        load_catalog([Source("a", tmp_path / "t", "dev")])
    catalog = load_catalog([Source("a", tmp_path / "t")])
    with pytest.raises(DataError, match="no task 'gone'"):
        catalog.find("train", "a", "gone")
    with pytest.raises(DataError, match=r"no \[\[data\]\] source has split 'val'"):
        DrawOrder(catalog, "val", 0)

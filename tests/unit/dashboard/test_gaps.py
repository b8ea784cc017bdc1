"""What KV of older weights does to a score is shown apart from what engine and trainer differ by on the same."""

from __future__ import annotations

import io

from rich.console import Console

from consumers.dashboard.terminal import final_table
from consumers.dashboard.view import RunView
from gyre_engine.events.cells import ProbeGap


def gap(largest: float, kept: int = 0) -> ProbeGap:
    return ProbeGap(cell="c1", version=1, tokens=9, gap_max=largest, gap_mean=largest, kept_tokens=kept)


def rows(*gaps: ProbeGap) -> list[list[str]]:
    view, console = RunView(steps=1), Console(file=io.StringIO(), width=120)
    for event in gaps:
        view.see(event)
    final_table(view, console, 1.0)
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    return [[cell.strip() for cell in line.strip("\u2502 ").split("\u2502")] for line in lines if "gap" in line]


def test_the_largest_of_each_kind() -> None:
    assert rows(gap(1e-6), gap(0.5, kept=9), gap(2e-6), gap(0.25, kept=9)) == [
        ["largest gap engine/trainer", "2.00e-06  (versions up to 1)"],
        ["largest gap on KV of older weights", "5.00e-01"],
    ]


def test_a_run_that_keeps_nothing_says_nothing_of_it() -> None:
    assert rows(gap(1e-6)) == [["largest gap engine/trainer", "1.00e-06  (versions up to 1)"]]


def test_a_gap_that_nobody_measured_is_no_small_one() -> None:
    assert rows() == [["largest gap engine/trainer", "not measured"]]

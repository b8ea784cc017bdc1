"""Attempts that were discarded and tried again are told apart from places that were given up."""

from __future__ import annotations

import io

from rich.console import Console

from consumers.dashboard.terminal import final_table
from consumers.dashboard.view import RunView
from gyre_engine.events.executions import Discarded, DiscardReason


def executions(*finals: bool) -> str:
    view, console = RunView(steps=1), Console(file=io.StringIO(), width=120)
    for index, final in enumerate(finals):
        view.see(Discarded(execution=f"g.{index}.0", reason=DiscardReason.CRASHED_WITHOUT_WORK, final=final, wall_us=1))
    final_table(view, console, 1.0)
    (line,) = [line for line in console.file.getvalue().splitlines() if "executions" in line]  # type: ignore[attr-defined]
    return str(line)


def test_both_are_counted() -> None:
    assert "0 finished, 1 discarded, 2 tried again" in executions(False, True, False)


def test_where_none_was_tried_again_nothing_is_said_of_it() -> None:
    assert "1 discarded" in executions(True) and "again" not in executions(True)

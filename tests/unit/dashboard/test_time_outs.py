"""The overall time-out's toll by duration: an alert where the longest tenth loses more than the rest."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from consumers.dashboard.terminal import Display, final_table
from consumers.dashboard.time_outs import Lost, TimeOuts
from consumers.dashboard.view import RunView
from gyre_engine.events.executions import Discarded, DiscardReason, Ending, Finished

SECOND = 1_000_000


def finished(seconds: int) -> Finished:
    return Finished(
        execution=f"g.{seconds}.0", ending=Ending.COMPLETED, work_url="", work_hash="", did_work=True, served_us=0,
        wall_us=seconds * SECOND,
    )  # fmt: skip


def discarded(seconds: int, reason: DiscardReason = DiscardReason.OVERALL_TIMEOUT) -> Discarded:
    return Discarded(execution=f"g.{seconds}.0", reason=reason, final=True, wall_us=seconds * SECOND)


def after(*ends: Finished | Discarded) -> TimeOuts:
    found = TimeOuts()
    for end in ends:
        found.see(end)
    return found


def test_the_longest_tenth_that_loses_more_than_the_rest_is_an_alert() -> None:
    """1 ... 20 s in any order, those of 19 and 20 s discarded: 2 of the longest 2, 0 of the other 18."""
    found = after(discarded(20), *map(finished, range(18, 0, -1)), discarded(19))
    assert found.lost == Lost(2, 2, 18, 0)
    assert found.alert == (
        "overall time-out: 2 of the longest 2 executions discarded, 0 of the other 18: "
        "raise runner.overall_timeout_s, or long work is never trained on"
    )


def test_what_is_lost_evenly_or_not_at_all_is_no_alert() -> None:
    """Every second one of 20 is lost: 1 of 2 and 9 of 18, the same share."""
    even = after(*(discarded(n) if n % 2 else finished(n) for n in range(1, 21)))
    assert even.lost == Lost(2, 1, 18, 9) and even.alert == ""
    assert after(*map(finished, range(1, 21))).alert == after().alert == after(discarded(1)).alert == ""


@pytest.mark.parametrize("reason", [reason for reason in DiscardReason if reason is not DiscardReason.OVERALL_TIMEOUT])
def test_discards_for_other_reasons_are_not_counted(reason: DiscardReason) -> None:
    assert after(finished(1), discarded(2, reason)).lost == Lost(1, 0, 0, 0)


def test_an_end_that_is_told_twice_counts_once() -> None:
    assert after(discarded(3), finished(1), discarded(3), finished(3)).lost == Lost(1, 1, 1, 0)


def test_the_live_display_and_the_summary_say_it_and_are_silent_without_it() -> None:
    shown = []
    for last in (discarded(20), finished(20)):
        view = RunView(steps=1)
        for event in (*map(finished, range(1, 20)), last):
            view.see(event)
        console = Console(file=io.StringIO(), width=200)
        console.print(Display("r", 0.0).render(view, 1.0))
        final_table(view, console, 1.0)
        shown.append(console.file.getvalue())  # type: ignore[attr-defined]
    assert shown[0].count("overall time-out: 1 of the longest 2 executions discarded, 0 of the other 18") == 2
    assert "overall time-out" not in shown[1]

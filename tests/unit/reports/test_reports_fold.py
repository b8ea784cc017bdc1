"""A step's report: its figures, worked by hand; the same in whichever order topics are read; once, whoever restarts when."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gyre_engine.events import Recorded
from gyre_engine.events.reports import DriftAt, MemberTime, StepReported
from gyre_engine.events.training import Claimed, CoreElected, MemberReleased
from gyre_engine.log.memory import MemoryLog
from gyre_engine.reports.figures import figures
from gyre_engine.reports.fold import Report, Reports
from tests.unit.reports import story


def seen(fold: Reports, records: Sequence[Recorded]) -> list[Report]:
    return [report for record in records for report in fold.see(record)]


def the_report() -> StepReported:
    (report,) = seen(Reports(), story.records(story.the_run()))
    return report.event


def test_its_figures() -> None:
    """See the story: opened at 1 s, committed at 8 s of the ledger's clock."""
    assert replace(the_report(), resume={}) == StepReported(
        step=1, attempt=1, core_epoch=1, opened_at=1_000_000, committed_at=8_000_000, seconds=7.0, skipped=False,
        loss=0.625, policy_loss=0.5, kl_loss=0.25, entropy_loss=-0.125, grad_norm=0.75, lr=1e-4, entropy=1.5, kl=0.01,
        reference_kl=None, clip_fraction=0.2, ratio_max=12.0,
        ratio_tails={"above_2": 0.2, "above_5": 2 / 15, "above_10": 1 / 15, "below_0.5": 0.0, "below_0.2": 0.0, "below_0.1": 0.0},
        ratio_tail_tokens={"above_2": 3, "above_5": 2, "above_10": 1, "below_0.5": 0, "below_0.2": 0, "below_0.1": 0},
        drift=(DriftAt(0, 10, 1.0, 1.5, 0.01), DriftAt(1, 5, 0.9, 12.0, 0.2)),
        gap_version=None, gap_max=None, gap_mean=None, gap_cells=0,
        trained_tokens=15, packed_tokens=36, sampled_tokens=28, delivered_tokens=27, delivered=27 / 28, trained=15 / 28,
        path_tokens=54, dedup_ratio=1.5, step_groups=2, decided_groups=3, zero_variance_groups=2,
        untrained_groups={"zero-variance": 2}, trained_executions=2, scored_executions=4, discarded_executions=1,
        failed_executions=1, left_out_executions={"discarded": 1, "evaluation-failed": 1},
        reward_mean=0.5, reward_deviation=pytest.approx(0.125**0.5), reward_min=0.0, reward_max=1.0,
        staleness_max=1, staleness_mean=0.25, data_s=7.0, burst_s=0.5, prepare_s=0.125,
        members=(
            # The core waited 1 s in all, merged its own 0.125 and all others' 0.5; the satellite took the weights in 0.75 s.
            MemberTime("c0", 1, 1, 11, compute_s=2.0, wait_s=1.0, merge_s=0.625, publish_s=0.25),
            MemberTime("c1", 1, 1, 4, compute_s=2.0, wait_s=0.5, merge_s=0.125, publish_s=0.75),
        ),
        released_members=0,
    )  # fmt: skip


def test_a_skipped_step_has_no_figures_of_an_update() -> None:
    """Its gradient was not a number: no norm, no loss, and nothing of either in what is shown."""
    metrics = {name: value for name, value in story.METRICS.items() if not name.endswith("_loss") and name != "lr"}
    skipped = replace(story.committed(1), grad_norm=None, loss=None, metrics={**metrics, "skipped": 1.0})
    log = MemoryLog(run="r")
    story.put(log, (*story.TREES, *story.DECISIONS, *story.LEDGER[:-1], skipped))
    (report,) = seen(Reports(), story.records(log))
    found = report.event
    assert (found.skipped, found.grad_norm, found.loss, found.policy_loss, found.kl_loss, found.lr) == (True, *[None] * 5)
    names = {figure.family.name for figure in figures(found)}
    assert not names & {"optimizer/grad_norm", "loss/total", "loss/policy", "loss/kl", "loss/entropy"}
    assert names >= {"optimizer/skipped", "reward/mean"}


def test_what_a_commit_leaves_out_since_it_is_not_a_number_is_not_shown() -> None:
    gone = {"clip_fraction", "ratio_max", "drift_0_ratio_mean", "drift_0_ratio_max", "drift_0_gap_mean"}
    metrics = {name: value for name, value in story.METRICS.items() if name not in gone}
    log = MemoryLog(run="r")
    story.put(log, (*story.TREES, *story.DECISIONS, *story.LEDGER[:-1], replace(story.committed(1), metrics=metrics)))
    (report,) = seen(Reports(), story.records(log))
    assert (report.event.clip_fraction, report.event.ratio_max) == (None, None)
    assert report.event.drift == (DriftAt(0, 10, None, None, None), DriftAt(1, 5, 0.9, 12.0, 0.2))
    shown = {
        (f.family.name, f.at) for f in figures(report.event) if f.family.name.startswith(("drift", "ratio/max", "policy/clip"))
    }
    of = ("drift/tokens", "drift/ratio_mean", "drift/ratio_max", "drift/log_ratio_mean")
    assert shown == {("drift/tokens", "0"), *((name, "1") for name in of)}


PARTITIONS = [
    [r for r in story.records(story.the_run(), topic) if r.partition == number] for topic in story.TOPICS for number in range(4)
]
PARTITIONS = [records for records in PARTITIONS if records]


@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_whichever_topic_is_read_first_and_whatever_comes_twice(data: st.DataObject) -> None:
    """Any merge of the partitions in which each keeps its order; any record once more right behind itself, or at the end. Of claims
    there is no second: they name a count, so a second one asks for more (log-rules, 5), and no producer writes it."""
    left, order = [list(records) for records in PARTITIONS], []
    while left := [records for records in left if records]:
        record = data.draw(st.sampled_from(left)).pop(0)
        order += [record] * (1 if isinstance(record.event, Claimed) else data.draw(st.integers(1, 2)))
    order += [r for r in data.draw(st.lists(st.sampled_from(order), max_size=5)) if not isinstance(r.event, Claimed)]
    (report,) = seen(Reports(), order)
    assert replace(report.event, resume={}) == replace(the_report(), resume={})
    assert (report.cause, report.at) == ("training-8", 8_000_000)


def test_nothing_is_reported_before_every_tree_is_there() -> None:
    log = story.the_run()
    *trees, last = story.records(log, "trees")
    fold = Reports()
    assert seen(fold, [*story.records(log, "training", "trajectories"), *trees]) == []
    assert len(fold.see(last)) == 1


def next_step(log: MemoryLog) -> None:
    story.put(log, story.SECOND_STEP)


def write(log: MemoryLog, report: Report) -> None:
    log.append(report.event, id=report.id, cause=report.cause, at=report.at).result()


def test_what_comes_late_changes_nothing() -> None:
    log = story.the_run()
    fold, late = Reports(), story.one_call("g000001.2.0", 50)
    seen(fold, story.records(log))
    story.put(log, [late, story.FIRST])
    next_step(log)
    (report,) = seen(fold, [r for r in story.records(log) if r not in story.records(story.the_run())])
    assert (report.event.step, report.event.sampled_tokens, report.event.decided_groups) == (2, 12, 1)
    assert report.event.zero_variance_groups == 1


def test_a_tree_that_admission_had_not_read_counts_nowhere_even_where_it_closed_first() -> None:
    """What is counted is the decision's word: else two readers of one log would differ, by which topic they read first."""
    log = MemoryLog(run="r")
    story.put(log, (story.one_call("g000001.2.0", 50), *story.TREES, *story.DECISIONS, *story.LEDGER))
    for topics in (story.TOPICS, story.TOPICS[::-1]):
        (report,) = seen(Reports(), story.records(log, *topics))
        assert (report.event.sampled_tokens, report.event.delivered_tokens) == (28, 27)


def begun_again(log: MemoryLog) -> list[Report]:
    """A successor: the ledger whole, then `trajectories`, and of the rest what the last report says."""
    fold = Reports()
    found = seen(fold, story.records(log, "training"))
    begin = {(topic, int(n)): offset for (topic, _, n), offset in ((p.rpartition("/"), o) for p, o in fold.resume.items())}
    for topic in ("trees", "trajectories", "cells"):
        found += seen(fold, list(log.read(topic, start=begin)))
    return found


def test_a_successor_makes_what_is_missing_and_nothing_else() -> None:
    log = story.the_run()
    write(log, *begun_again(log))
    assert begun_again(log) == []
    next_step(log)
    whole = seen(Reports(), story.records(log))
    assert [r.event.step for r in begun_again(log)] == [2]
    assert replace(begun_again(log)[0].event, resume={}) == replace(whole[-1].event, resume={})
    assert begun_again(log)[0].id == whole[-1].id


def test_a_successor_reads_no_tree_of_a_reported_step() -> None:
    """All trees of step 1 stand before its report, so whatever partition they are on begins behind them; no other is named."""
    log = story.the_run()
    (report,) = begun_again(log)
    ends = {f"{topic}/{n}": end for (topic, n), end in log.ends(["trees"]).items() if end}
    assert report.event.resume == ends


def test_a_tree_that_waits_for_its_group_is_read_again() -> None:
    log = story.the_run()
    story.put(log, [story.one_call("g000009.0.0", 3)])
    waiting = story.records(log, "trees")
    (place,) = [(r.partition, r.offset) for r in waiting if r.event.execution == "g000009.0.0"]  # type: ignore[attr-defined]
    (report,) = seen(Reports(), story.records(log, "trees", "training", "trajectories"))
    assert report.event.resume[f"trees/{place[0]}"] == place[1]


def test_trees_of_an_evaluation_are_not_waited_for() -> None:
    log = story.the_run()
    story.put(log, [story.one_call("v001-val-0000.0.0", 3), story.one_call("odd name", 3)])
    (report,) = seen(Reports(), story.records(log, "trees", "training", "trajectories"))
    assert report.event.resume == {f"{topic}/{n}": end for (topic, n), end in log.ends(["trees"]).items() if end}
    assert report.event.sampled_tokens == 28


def test_positions_of_partitions_that_were_not_read_since_are_kept() -> None:
    log = story.the_run()
    (first,) = begun_again(log)
    write(log, first)
    story.put(log, story.SECOND_STEP)
    (second,) = begun_again(log)
    assert second.event.resume == {f"trees/{n}": end for (_, n), end in log.ends(["trees"]).items() if end}


def test_the_first_report_of_a_step_counts() -> None:
    log = story.the_run()
    (report,) = begun_again(log)
    write(log, report)
    log.append(replace(report.event, resume={"trees/0": 99})).result()
    fold = Reports()
    assert seen(fold, story.records(log, "training")) == []
    assert fold.resume == report.event.resume


def test_gaps_are_those_of_the_newest_version() -> None:
    log = MemoryLog(run="r")
    gaps = [
        story.gap(0, largest=9.0), story.gap(1, "c1", 2e-6, 1e-7, tokens=10), story.gap(1, "c2", 3e-6, 4e-7, tokens=30),
        story.gap(0, "c2", largest=9.0), story.gap(1, "c1", largest=9.0), story.gap(1, "c3", largest=9.0, kept=5),
    ]  # fmt: skip
    story.put(log, (*story.TREES, *story.DECISIONS, *gaps, *story.LEDGER))
    (report,) = seen(Reports(), story.records(log, "cells", "trees", "trajectories", "training"))
    found = report.event
    assert (found.gap_version, found.gap_cells, found.gap_max) == (1, 2, 3e-6)
    assert found.gap_mean == pytest.approx((1e-7 * 10 + 4e-7 * 30) / 40)
    assert found.resume["cells/0"] == 1, "the first of version 1"
    assert report.id != seen(Reports(), story.records(story.the_run()))[0].id, "gaps are among the causes"


def test_an_attempt_that_was_void_counts_for_nothing() -> None:
    """The first core dies with both seals; of the second attempt a member is released and comes again."""
    log = MemoryLog(run="r")
    second = [
        CoreElected(core_epoch=2, holder="h2", cell="c0"), story.opened(1, "g000000", "g000001", attempt=2, core_epoch=2),
        story.joined("c1", 1, 2, 2), story.claimed("c1", 1, 2, 2),
        MemberReleased(core_epoch=2, cell="c1", member_epoch=2, reason="silent"), *story.worked(1, 2, 3),
        story.committed(1, attempt=2, core_epoch=2, epoch=3),
    ]  # fmt: skip
    story.put(log, (*story.TREES, *story.DECISIONS, *story.LEDGER[:-1], *second))
    (report,) = seen(Reports(), story.records(log))
    assert (report.event.attempt, report.event.released_members, report.event.trained_tokens) == (2, 1, 15)
    assert [(m.cell, m.member_epoch) for m in report.event.members] == [("c0", 3), ("c1", 3)]
    assert report.event.opened_at == 9_000_000

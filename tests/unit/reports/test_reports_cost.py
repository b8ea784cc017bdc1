"""What following a run costs: a report read back as much in the hundredth step as in the first, memory what is open and names."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from dataclasses import replace
from types import FrameType, FunctionType, ModuleType
from typing import Any

from gyre_engine.events import Event
from gyre_engine.events.reports import StepReported
from gyre_engine.events.training import CoreElected, GroupAdmitted, Sealed, StepCommitted, StepOpened
from gyre_engine.log.memory import MemoryLog
from gyre_engine.reports.fold import Reports
from gyre_engine.reports.groups import Decision
from tests.unit.reports import story

GROUPS = 2
"""Of each step."""


def names(step: int) -> list[str]:
    return [f"g{(step - 1) * GROUPS + i:06d}" for i in range(GROUPS)]


def decisions(steps: int) -> list[GroupAdmitted]:
    return [story.flat_group(name) for step in range(1, steps + 1) for name in names(step)]


def told(report: StepReported, step: int) -> StepReported:
    return replace(report, step=step, resume={})


def ledger(steps: int, reported: int) -> MemoryLog:
    """Each step is opened, worked on and committed; the first `reported` have a report each, one step behind."""
    log, report = MemoryLog(run="r"), the_report()
    events: list[Event] = [CoreElected(core_epoch=1, holder="h", cell="c0")]
    for step in range(1, steps + 1):
        events += [story.opened(step, *names(step)), *story.worked(step, epoch=step), story.committed(step, epoch=step)]
        events += [told(report, step - 1)] if 1 < step <= reported + 1 else []
    story.put(log, [*events, *([told(report, steps)] if steps == reported else [])])
    return log


def the_report() -> StepReported:
    fold = Reports()
    (report,) = [r for record in story.records(story.the_run()) for r in fold.see(record)]
    return report.event


def instructions(act: Callable[[], object]) -> int:
    """Of the interpreter, that `act` takes."""
    count = 0

    def trace(frame: FrameType, what: str, arg: Any) -> Any:
        nonlocal count
        frame.f_trace_opcodes = True
        count += what == "opcode"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        act()
    finally:
        sys.settrace(before)
    return count


def held(fold: Reports, *kinds: type) -> int:
    """Objects of these kinds that the fold keeps alive."""
    found: dict[int, object] = {}
    todo: list[object] = [fold]
    while todo:
        one = todo.pop()
        if id(one) not in found and not isinstance(one, type | ModuleType | FunctionType):
            found[id(one)] = one
            todo += gc.get_referents(one)
    return sum(isinstance(one, kinds) for one in found.values())


def at_a_start(steps: int, reported: int) -> Reports:
    """As the process begins: the ledger whole."""
    fold = Reports()
    for record in story.records(ledger(steps, reported), "training"):
        assert fold.see(record) == []
    return fold


def test_a_report_read_back_costs_the_same_however_long_the_run_is() -> None:
    def cost(steps: int) -> int:
        records = story.records(ledger(steps, steps), "training")
        fold = Reports()
        for record in records[:-1]:
            fold.see(record)
        return instructions(lambda: fold.see(records[-1]))

    assert cost(3) == cost(60) > 0


def test_at_a_start_events_are_held_of_what_is_open_or_not_reported_alone() -> None:
    """Of reported steps there are names; two steps without a report have each their opening, their commit and two seals."""
    kinds = (Sealed, StepOpened, StepCommitted)
    assert held(at_a_start(60, 60), *kinds) == held(at_a_start(5, 5), *kinds) == 1, "the ledger's last commit"
    assert held(at_a_start(60, 58), *kinds) == 2 * 4


def test_the_decisions_of_reported_steps_go_as_they_are_read() -> None:
    fold, log = at_a_start(40, 40), MemoryLog(run="r")
    story.put(log, decisions(41))
    most = 0
    for record in story.records(log, "trajectories"):
        assert fold.see(record) == []
        most = max(most, held(fold, Decision))
    assert most <= GROUPS


def test_after_a_start_the_next_step_counts_from_the_last_reported_one() -> None:
    """Four steps, three of them reported: the fourth's report has its own groups alone as decided since."""
    fold, log = at_a_start(4, 3), MemoryLog(run="r")
    trees = [story.one_call(f"{name}.{i}.0", 3) for name in names(4) for i in range(2)]
    story.put(log, [*trees, *decisions(4)])
    (report,) = [r for record in story.records(log, "trees", "trajectories") for r in fold.see(record)]
    assert (report.event.step, report.event.decided_groups, report.event.sampled_tokens) == (4, GROUPS, 12)

"""Cases that neighbours' users reported of work that is lost: with real sandboxes, from a runner to the step that is taken."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

from consumers.trainer.board import CORE_TOPICS, Board
from gyre_engine.batching.step_inputs import Packing, StepInputs, step_inputs
from gyre_engine.events.executions import Discarded, DiscardReason, Dispatched, Finished
from gyre_engine.events.training import Checkpointed, CoreElected, GroupAdmitted, StepCommitted, StepOpened
from gyre_engine.log.memory import MemoryLog
from gyre_engine.scheduling.classes import ClassPlan, next_groups
from gyre_engine.scheduling.water_level import WaterLevel
from producers.proxy.restore import rebuild, take_over
from producers.runner.endings import RESTART
from tests.integration.endings_bench import RIGHT, WRONG, Agents, Said, answers, ended, shell
from tests.integration.harness_bench import Bench, bench
from tests.integration.runner_runs import events

ALL_TOPICS = ("executions", "model-calls", "tool-events", "scores", "trees", "trajectories", "training")


def settled(log: MemoryLog) -> set[str]:
    """Places that have their final end."""
    final = [*events(log, Finished), *(event for event in events(log, Discarded) if event.final)]
    return {event.execution.rsplit(".", 1)[0] for event in final}


def board_of(log: MemoryLog) -> Board:
    """What a trainer that has just started reads."""
    board = Board("c0")
    for topic in CORE_TOPICS:
        for record in log.read(topic):
            board.see(record)
    return board


def take_step(log: MemoryLog, plan: ClassPlan) -> StepInputs | None:
    """Open and commit the next step as a core does, without a model; None where its groups are not there."""
    board = board_of(log)
    backlog, step = board.backlog, board.ledger.step + 1
    groups = next_groups(backlog.admitted, backlog.consumed, plan)
    if groups is None:
        return None
    inputs = step_inputs(step, groups, backlog.calls, Packing(4096, 4096))
    opened = StepOpened(
        core_epoch=2, step=step, attempt=1, weights_hash="", groups=tuple(g.group for g in groups), scores=(), micro_steps=(),
        executions=inputs.executions, divisor=inputs.divisor, staleness_max=0, staleness_mean=0.0,
    )  # fmt: skip
    committed = StepCommitted(
        core_epoch=2, step=step, attempt=1, merge_order=(), weights_hash="", executions=inputs.executions, grad_norm=0.0, loss=0.0,
        reward_mean=0.0,
    )  # fmt: skip
    log.append_all([opened, committed, Checkpointed(core_epoch=2, step=step, weights_hash="", url="")])
    return inputs


def right_and_wrong(execution: str) -> Sequence[Said]:
    """The first of a group is worth 1, the others 0."""
    return RIGHT if execution.split(".")[1] == "0" else WRONG


async def test_c32_a_task_that_raises_and_a_harness_that_is_killed_are_ends_with_a_cause(tmp_path: Path) -> None:
    """C32: 8 executions; keeping the work of one raises, which ends the runner by name, and its supervisor starts the next; the
    harness of another is killed by signal 9."""
    killed = "g000000.5.0"
    agents = Agents(tmp_path, lambda name: (shell("kill -9 $PPID"),) if name == killed else right_and_wrong(name))
    agents.task("one")
    (tmp_path / "store" / "work" / "g000000.3.0.tar").mkdir(parents=True)
    async with bench(tmp_path) as on:
        on.cell("a", 0, agents.engine())
        with pytest.raises(OSError, match=r"g000000\.3\.0\.tar"):
            await agents.run(on, lambda _: False, group_size=8)
        await agents.run(on, lambda log: len(settled(log)) == 8, group_size=8)
    await agents.judge(on.log)
    causes = {event.execution: (event.reason, event.detail) for event in events(on.log, Discarded)}
    assert causes["g000000.3.0"] == (DiscardReason.LOST, RESTART)
    assert causes[killed][0] in (DiscardReason.CRASHED_WITHOUT_WORK, DiscardReason.LOST)
    water = WaterLevel()
    for record in on.log.read("executions"):
        water.observe(record.event)
    assert water.dispatched == water.terminated == len(events(on.log, Dispatched)) and water.level == 0
    [group] = events(on.log, GroupAdmitted)
    assert group.trains and [e.index for e in group.executions] == list(range(8))
    on.log.append_all([CoreElected(core_epoch=2, holder="c0", cell="c0")])
    step = take_step(on.log, ClassPlan(batch=1, mu=1, phi=0, steps=1))
    assert step is not None and step.executions == 8


async def test_c33_what_was_in_flight_at_a_kill_is_trained_once_the_slow_ones_too(tmp_path: Path) -> None:
    """C33: queries 0-7 are out, 0, 1, 2 and 5 have finished and are trained and stored; what stood on the log at that moment is all
    that the next life has."""
    plan = ClassPlan(batch=4, mu=1, phi=1, steps=2)
    done, lives = {f"g00000{number}" for number in (0, 1, 2, 5)}, Counter[str]()

    def told(execution: str) -> Sequence[Said]:
        group = execution.split(".")[0]
        return right_and_wrong(execution) if lives["second"] or group in done else (answers("1"), shell("sleep 60"))

    agents = Agents(tmp_path, told)
    for number in range(8):
        agents.task(f"query-{number}")
    async with bench(tmp_path) as first:
        first.cell("a", 0, agents.engine())
        snapshot = MemoryLog()

        def killed(log: MemoryLog) -> bool:
            if not (ended(8)(log) and sum(turns == 2 for turns in agents.turns.values()) == 16):
                return False
            copy(log, snapshot)
            return True

        await agents.run(first, killed, plan=plan)
    snapshot.append_all([CoreElected(core_epoch=2, holder="c0", cell="c0")])
    await agents.judge(snapshot)
    step = take_step(snapshot, plan)
    assert step is not None and {group.group for group in step.groups} == done
    lives["second"] += 1
    async with bench(tmp_path) as second:
        copy(snapshot, second.log)
        take_over_from_the_log(second)
        second.cell("a", 0, agents.engine())
        await agents.run(second, lambda log: len(settled(log)) == 16, plan=plan)
    await agents.judge(second.log)
    assert take_step(second.log, plan) is not None and take_step(second.log, plan) is None
    trained = Counter(group for opened in events(second.log, StepOpened) for group in opened.groups)
    assert trained == {f"g00000{number}": 1 for number in range(8)}
    queries = {event.group: event.query for event in events(second.log, Dispatched)}
    assert {queries[group] for group in trained} == {f"query-{number}" for number in range(8)}


def take_over_from_the_log(on: Bench) -> None:
    """What a proxy that starts anew reads back."""
    service = on.service
    past = take_over(on.log, "second")
    service.closed.update(past.closed)
    service.executions.update({name: rebuild(name, past.open, service.desk.rendering) for name in past.open.epochs})


def copy(log: MemoryLog, to: MemoryLog) -> None:
    """All records, as they are."""
    for topic in ALL_TOPICS:
        for record in log.read(topic):
            to.append(record.event, id=record.id, cause=record.cause, at=record.at)


async def test_c35_a_task_whose_start_always_fails_leaves_with_its_cause_and_blocks_no_step(tmp_path: Path) -> None:
    """C35: (b) two groups, the task of one cannot be set up: attempts = the budget of 3, and the step of both is taken."""
    agents = Agents(tmp_path, right_and_wrong)
    agents.task("good")
    agents.task("other", dockerfile="FROM x\nRUN apt-get install -y cowsay\n")
    (tmp_path / "tasks" / "other" / "instruction.md").write_text("Another one.\n")
    plan = ClassPlan(batch=2, mu=1, phi=0, steps=1)
    async with bench(tmp_path) as on:
        on.cell("a", 0, agents.engine())
        await agents.run(on, ended(2 + 2 * 3), plan=plan, attempts=3)
    await agents.judge(on.log)
    failed = events(on.log, Discarded)
    assert {(event.reason, "cowsay" in event.detail) for event in failed} == {(DiscardReason.ENVIRONMENT, True)}
    assert sorted(Counter(event.execution.rsplit(".", 1)[0] for event in failed).values()) == [3, 3]
    by_query = {group.query: group for group in events(on.log, GroupAdmitted)}
    assert (by_query["good"].trains, by_query["other"].trains, by_query["other"].reason) == (True, False, "too-few")
    assert {left.reason for left in by_query["other"].left_out} == {"discarded: environment"}
    on.log.append_all([CoreElected(core_epoch=2, holder="c0", cell="c0")])
    step = take_step(on.log, plan)
    assert step is not None and len(step.groups) == 2 and step.executions == 2

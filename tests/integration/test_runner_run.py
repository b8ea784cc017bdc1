"""Whole runs of the runner in real sandboxes: from task to work product, restarts, evaluations."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import psutil
import pytest

from gyre_engine.events.executions import Discarded, DiscardReason, Dispatched, Ending, Finished, Scored, Started, ToolReturned
from gyre_engine.events.training import EvaluationReported
from gyre_engine.log.memory import MemoryLog
from gyre_engine.sandbox.policy import python_path
from gyre_engine.scheduling.classes import ClassPlan
from gyre_engine.scheduling.evaluations import EvaluationPlan
from gyre_engine.tasks import Source
from gyre_engine.work_product import unpack
from producers.runner.harnesses import HarnessSettings
from tests.integration.runner_fakes import FakeProxy, write_task
from tests.integration.runner_runs import command, events, publish, run_once, runner_on, settings_for, settled, writes_42


async def test_an_execution_goes_from_task_to_kept_work_product(tmp_path: Path) -> None:
    write_task(tmp_path / "tasks" / "one")
    log = MemoryLog()
    proxy = await run_once(tmp_path, log, writes_42)
    dispatched, finished = events(log, Dispatched), events(log, Finished)
    assert sorted(d.execution for d in dispatched) == ["g000000.0.0", "g000000.1.0"]
    assert {(f.execution, f.ending, f.did_work) for f in finished} == {(d.execution, Ending.COMPLETED, True) for d in dispatched}
    assert sorted(proxy.closed) == ["g000000.0.0", "g000000.1.0"]
    assert len(events(log, Started)) == 2
    data = (tmp_path / "store" / "work" / "g000000.0.0.tar").read_bytes()
    assert unpack(data, tmp_path).refused == ()
    assert (tmp_path / "app" / "answer.txt").read_text() == "42"
    assert (tmp_path / "app" / "seed.txt").read_text() == "seed\n"
    assert [e.content for e in events(log, ToolReturned)] == ["ok", "ok"]
    assert not list((tmp_path / "workspaces").iterdir())
    first = proxy.requests[0][1]["messages"]
    assert [m["role"] for m in first] == ["system", "user"]
    assert first[1]["content"] == "Write 42 to answer.txt. (one)"


class Late(FakeProxy):
    """Drops its first connections, as what listens there before the proxy does."""

    unready = 3

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.unready -= 1
        if self.unready >= 0:
            writer.transport.abort()
        else:
            await super()._serve(reader, writer)


CALLS_ONCE = """-c '
import os, urllib.request
at, key = os.environ["GYRE_BASE_URL"], os.environ["GYRE_API_KEY"]
urllib.request.urlopen(urllib.request.Request(at + "/chat/completions", b"{}", {"authorization": "Bearer " + key}))
open("answer.txt", "w").write("42")
'"""


@pytest.mark.parametrize("sandboxed", [True, False])
async def test_no_agent_starts_before_its_proxy_answers(tmp_path: Path, sandboxed: bool) -> None:
    """A client without tries of its own loses nothing by a proxy that comes up after the runner."""
    write_task(tmp_path / "tasks" / "one")
    log, proxy = MemoryLog(), Late(lambda execution, request: (200, {}))
    once = command(f"{python_path()} {CALLS_ONCE}")
    settings = settings_for(tmp_path, await proxy.start(), group_size=1, harness=once, sandboxed=sandboxed)
    async with runner_on(log, settings, tmp_path) as runner:
        running = asyncio.create_task(runner.run())
        await settled(log, 1)
        publish(log, 1)
        await asyncio.wait_for(running, 20)
    await proxy.stop()
    assert [e.ending for e in events(log, Finished)] == [Ending.COMPLETED] and not events(log, Discarded)


async def test_a_runner_that_is_stopped_while_the_proxy_is_away_ends_at_once(tmp_path: Path) -> None:
    write_task(tmp_path / "tasks" / "one")
    log, proxy = MemoryLog(), Late(writes_42)
    proxy.unready = 1_000_000
    async with runner_on(log, settings_for(tmp_path, await proxy.start(), group_size=1), tmp_path) as runner:
        running = asyncio.create_task(runner.run())
        async with asyncio.timeout(20):
            while proxy.unready == 1_000_000:
                await asyncio.sleep(0.02)
        runner.stop()
        await asyncio.wait_for(running, 4)
    await proxy.stop()
    assert [(d.reason, d.final) for d in events(log, Discarded)] == [(DiscardReason.LOST, False)] and not events(log, Started)


async def test_the_agent_waits_out_a_restart_of_the_proxy(tmp_path: Path) -> None:
    """The proxy is away for a while in the middle: the agent sees one slow call."""
    write_task(tmp_path / "tasks" / "one")
    log = MemoryLog()

    def dies_at_first(execution: str, request: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        if len(proxy.requests) == 1:
            proxy.die()
        return writes_42(execution, request)

    proxy = FakeProxy(dies_at_first)
    async with runner_on(log, settings_for(tmp_path, await proxy.start(), group_size=1), tmp_path) as runner:
        running = asyncio.create_task(runner.run())
        async with asyncio.timeout(20):
            while not proxy.requests:
                await asyncio.sleep(0.02)
        await asyncio.sleep(0.6)
        await proxy.start()
        await settled(log, 1)
        publish(log, 1)
        await running
    await proxy.stop()
    (end,) = events(log, Finished)
    assert end.ending is Ending.COMPLETED and not events(log, Discarded)
    assert len(proxy.requests) == 3, "the call that was cut off came again"


async def test_a_client_that_exits_because_its_proxy_died_is_started_once_more(tmp_path: Path) -> None:
    """It has done work, and its patience is over before the proxy is back: a new attempt, which the log counts as lost once."""
    write_task(tmp_path / "tasks" / "one")
    log = MemoryLog()

    def dies_in_the_first(execution: str, request: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        if execution.endswith(".0.0") and request["messages"][-1]["role"] == "tool":
            proxy.die()
        return writes_42(execution, request)

    proxy = FakeProxy(dies_in_the_first)
    impatient = HarnessSettings(tools=("write", "bash"), patience_s=0.3)
    settings = settings_for(tmp_path, await proxy.start(), group_size=1, harness=impatient)
    async with runner_on(log, settings, tmp_path, bridge_s=0.3) as runner:
        running = asyncio.create_task(runner.run())
        async with asyncio.timeout(20):
            while len(proxy.requests) < 2 or sandboxes():
                await asyncio.sleep(0.02)
        await proxy.start()
        await settled(log, 2)
        publish(log, 1)
        await asyncio.wait_for(running, 20)
    await proxy.stop()
    assert [(d.execution, d.reason, d.final) for d in events(log, Discarded)] == [("g000000.0.0", DiscardReason.LOST, False)]
    assert [d.execution for d in events(log, Dispatched)] == ["g000000.0.0", "g000000.0.1"]
    assert [(f.execution, f.ending) for f in events(log, Finished)] == [("g000000.0.1", Ending.COMPLETED)]


def sandboxes() -> list[psutil.Process]:
    return [child for child in psutil.Process().children(recursive=True) if child.name() == "bwrap"]


async def test_a_stopped_runner_is_continued_and_nothing_is_dispatched_twice(tmp_path: Path) -> None:
    """C32, C33: every place ends once, the one that was running as a new attempt, those that were not started as they are."""
    for name in ("one", "two", "three"):
        write_task(tmp_path / "tasks" / name)
    log, proxy = MemoryLog(), FakeProxy(writes_42)
    url = await proxy.start()
    plan = ClassPlan(batch=2, mu=1, phi=0, steps=1)
    slow = settings_for(tmp_path, url, plan=plan, harness=command("sleep 60"), max_concurrent=1)
    async with runner_on(log, slow, tmp_path) as runner:
        running = asyncio.create_task(runner.run())
        async with asyncio.timeout(20):
            while not events(log, Started):
                await asyncio.sleep(0.02)
        runner.stop()
        await asyncio.wait_for(running, 20)
    assert [(d.reason, d.final) for d in events(log, Discarded)] == [(DiscardReason.LOST, False)]
    async with runner_on(log, settings_for(tmp_path, url, plan=plan), tmp_path) as runner:
        running = asyncio.create_task(runner.run())
        await settled(log, 5)
        publish(log, 1)
        await asyncio.wait_for(running, 20)
    await proxy.stop()
    places = [d.execution.rsplit(".", 1)[0] for d in events(log, Dispatched)]
    assert len(places) == 5 and len(set(places)) == 4
    assert sorted(f.execution for f in events(log, Finished)) == ["g000000.0.1", "g000000.1.0", "g000001.0.0", "g000001.1.0"]


async def test_what_a_dead_runner_had_started_is_lost_and_tried_again(tmp_path: Path) -> None:
    """kill -9: the log holds a start and no end, and a group that was dispatched in half."""
    write_task(tmp_path / "tasks" / "one")
    log = MemoryLog()
    dead = Dispatched(
        execution="g000000.0.0", group="g000000", index=0, attempt=0, group_size=2, group_number=0, class_number=0, query="one",
        source="tasks", split="train", harness="mini", weight_version=0, draw=0,
    )  # fmt: skip
    log.append_all([dead, Started(execution=dead.execution)])
    await run_once(tmp_path, log, writes_42, 3)
    (lost,) = events(log, Discarded)
    assert (lost.execution, lost.reason, lost.final) == ("g000000.0.0", DiscardReason.LOST, False)
    assert sorted(f.execution for f in events(log, Finished)) == ["g000000.0.1", "g000000.1.0"]
    assert len(events(log, Dispatched)) == 3


async def test_an_evaluation_is_pinned_holds_training_and_is_reported_once(tmp_path: Path) -> None:
    """Four executions of two tasks score 1, 0 / 1, 1: mean 0.75, pass@1 0.75, pass@2 1.0."""
    write_task(tmp_path / "tasks" / "one")
    for name in ("a", "b"):
        write_task(tmp_path / "val" / name)
    log, proxy = MemoryLog(), FakeProxy(writes_42)
    sources = (Source("tasks", tmp_path / "tasks"), Source("val", tmp_path / "val", "val"))
    evaluation = EvaluationPlan(before="val", after="val", samples=2)
    settings = settings_for(tmp_path, await proxy.start(), sources=sources, evaluation=evaluation)
    async with runner_on(log, settings, tmp_path) as runner:
        running = asyncio.create_task(runner.run())
        await settled(log, 4)
        assert {d.evaluation for d in events(log, Dispatched)} == {"v000-val"}
        give_scores(log)
        await settled(log, 6)
        publish(log, 1)
        await settled(log, 10)
        give_scores(log)
        await asyncio.wait_for(running, 20)
    await proxy.stop()
    first, last = sorted(events(log, EvaluationReported), key=lambda e: e.version)
    assert (first.evaluation, first.episodes, first.failed, first.mean) == ("v000-val", 4, 0, 0.75)
    assert first.pass_at_k == {"1": 0.75, "2": 1.0}
    assert (last.evaluation, last.version) == ("v001-val", 1)
    pinned = {(d.evaluation, d.weight_version) for d in events(log, Dispatched)}
    assert pinned == {("v000-val", 0), (None, 0), ("v001-val", 1)}


def give_scores(log: MemoryLog) -> None:
    """A score for every finished execution that has none: 0 for the second sample of the first task, else 1."""
    scored = {s.execution for s in events(log, Scored)}
    for end in events(log, Finished):
        if end.execution not in scored:
            reward = 0.0 if end.execution.endswith("-0000.1.0") else 1.0
            log.append_all(
                [Scored(execution=end.execution, scorer="verifier", scorer_version="1", evaluation_attempt=1, reward=reward)]
            )


async def test_a_run_of_no_steps_is_an_evaluation_alone(tmp_path: Path) -> None:
    write_task(tmp_path / "val" / "a")
    log, proxy = MemoryLog(), FakeProxy(writes_42)
    plan, evaluation = ClassPlan(batch=1, mu=1, phi=0, steps=0), EvaluationPlan(before="val", samples=1)
    sources = (Source("val", tmp_path / "val", "val"),)
    settings = settings_for(tmp_path, await proxy.start(), sources=sources, evaluation=evaluation, plan=plan)
    async with runner_on(log, settings, tmp_path) as runner:
        running = asyncio.create_task(runner.run())
        await settled(log, 1)
        give_scores(log)
        await asyncio.wait_for(running, 20)
    await proxy.stop()
    (reported,) = events(log, EvaluationReported)
    assert (reported.evaluation, reported.mean, len(events(log, Dispatched))) == ("v000-val", 0.0 + 1.0, 1)

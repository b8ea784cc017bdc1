"""Whole runs of the runner against a scripted endpoint, in real sandboxes, on the log in memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gyre_engine.events.executions import (
    Discarded,
    DiscardReason,
    Dispatched,
    Ending,
    Finished,
    Scored,
    Started,
    ToolReturned,
)
from gyre_engine.events.training import EvaluationReported, Published, StepCommitted
from gyre_engine.log.memory import MemoryLog
from gyre_engine.sandbox import Isolation, Limits, SandboxUnavailable, sandbox_available
from gyre_engine.sandbox.bridge import open_bridge
from gyre_engine.scheduling.classes import ClassPlan
from gyre_engine.scheduling.evaluations import EvaluationPlan
from gyre_engine.tasks import Source, load_catalog
from gyre_engine.work_product import unpack
from producers.runner.execution import Outside
from producers.runner.harnesses import HarnessSettings, find_harness
from producers.runner.proxy_client import ProxyClient
from producers.runner.runner import Runner
from producers.runner.settings import RunnerSettings
from tests.integration.runner_fakes import SECRET, Answer, FakeProxy, calls, says, write_task

try:
    sandbox_available()
except SandboxUnavailable as missing:
    pytest.skip(str(missing), allow_module_level=True)


def settings_for(folder: Path, url: str, **changes: Any) -> RunnerSettings:
    base = RunnerSettings(
        plan=ClassPlan(batch=1, mu=1, phi=0, steps=1), group_size=2, sources=(Source("tasks", folder / "tasks"),),
        harness=HarnessSettings(tools=("write", "bash")), workspaces=folder / "workspaces", store=f"file://{folder}/store",
        proxy_url=url, secret=SECRET, limits=Limits(cpu_s=20, memory_mb=512, processes=64, file_mb=8), attempts=3,
    )  # fmt: skip
    return replace(base, **changes)


@asynccontextmanager
async def runner_on(log: MemoryLog, settings: RunnerSettings, folder: Path) -> AsyncIterator[Runner]:
    proxy = ProxyClient(settings.proxy_url, SECRET, 5.0)
    port = int(settings.proxy_url.rsplit(":", 1)[1])
    socket = folder / "p.sock"
    bridge = await open_bridge(socket, "127.0.0.1", port)
    isolation = sandbox_available() if settings.sandboxed else Isolation.NONE
    try:
        yield Runner(
            log, load_catalog(settings.sources), Outside(settings, isolation, find_harness(settings.harness), proxy, str(socket))
        )
    finally:
        await proxy.aclose()
        await bridge.close()


def publish(log: MemoryLog, version: int) -> None:
    """What the core logs at the end of a step."""
    committed = StepCommitted(
        core_epoch=1,
        step=version,
        attempt=1,
        merge_order=(),
        weights_hash="",
        executions=0,
        grad_norm=0.0,
        loss=0.0,
        reward_mean=0.0,
    )
    published = Published(
        core_epoch=1, version=version, weights_hash="", descriptor=b"", nbytes=0, probe_ids=np.zeros(0, np.int32),
        probe_logprobs=np.zeros(0, np.float32),
    )  # fmt: skip
    log.append_all([committed, published])


def events(log: MemoryLog, kind: type) -> list[Any]:
    topic = kind.TOPIC  # type: ignore[attr-defined]
    return [r.event for r in log.read(topic) if isinstance(r.event, kind)]


async def settled(log: MemoryLog, count: int, limit_s: float = 60.0) -> None:
    """Until `count` terminal events stand on the log."""
    async with asyncio.timeout(limit_s):
        while len(events(log, Finished)) + len(events(log, Discarded)) < count:
            await asyncio.sleep(0.05)


async def run_once(folder: Path, log: MemoryLog, answer: Answer, terminals: int = 2, **changes: Any) -> FakeProxy:
    """One step's worth of executions, then the step is committed and the runner ends by itself."""
    proxy = FakeProxy(answer)
    settings = settings_for(folder, await proxy.start(), **changes)
    try:
        async with runner_on(log, settings, folder) as runner:
            running = asyncio.create_task(runner.run())
            waiting = asyncio.create_task(settled(log, terminals))
            await asyncio.wait({running, waiting}, return_when=asyncio.FIRST_COMPLETED)
            if running.done():
                await running
            await waiting
            publish(log, 1)
            await asyncio.wait_for(running, 20)
    finally:
        await proxy.stop()
    return proxy


def writes_42(execution: str, request: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    if request["messages"][-1]["role"] == "tool":
        return 200, says("done")
    return 200, calls("write", {"path": "answer.txt", "content": "42"})


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


async def one_execution(tmp_path: Path, answer: Answer, toml: str = "", **changes: Any) -> tuple[MemoryLog, FakeProxy]:
    """One group of one execution, to its end."""
    write_task(tmp_path / "tasks" / "one", toml=toml)
    log = MemoryLog()
    return log, await run_once(tmp_path, log, answer, changes.pop("terminals", 1), group_size=1, **changes)


def command(line: str) -> HarnessSettings:
    return HarnessSettings(name="command", command=line)


def never(execution: str, request: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    raise AssertionError("no model call was expected")


# The table of endings (learning.md, 4), each row provoked


async def test_completed(tmp_path: Path) -> None:
    log, _ = await one_execution(tmp_path, writes_42)
    (end,) = events(log, Finished)
    assert (end.ending, end.did_work, end.exit_code) == (Ending.COMPLETED, True, 0)


async def test_the_turn_budget_ends_it_and_keeps_the_work(tmp_path: Path) -> None:
    def again(execution: str, request: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        return 200, calls("write", {"path": "answer.txt", "content": str(len(request["messages"]))})

    log, proxy = await one_execution(tmp_path, again, harness=HarnessSettings(max_turns=3))
    (end,) = events(log, Finished)
    assert (end.ending, end.did_work, len(proxy.requests)) == (Ending.TURN_BUDGET, True, 3)


async def test_the_token_budget_ends_it(tmp_path: Path) -> None:
    def again(execution: str, request: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        return 200, calls("bash", {"command": "true"})

    log, proxy = await one_execution(tmp_path, again, harness=HarnessSettings(token_budget=14))
    (end,) = events(log, Finished)
    assert (end.ending, len(proxy.requests)) == (Ending.TOKEN_BUDGET, 2)


async def test_the_context_limit_ends_it_at_once_and_is_not_retried(tmp_path: Path) -> None:
    """C35 (a)."""

    def full(execution: str, request: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        if len(request["messages"]) < 4:
            return 200, calls("write", {"path": "answer.txt", "content": "4"})
        return 400, {"error": {"code": "context_length_exceeded", "message": "too long"}}

    log, proxy = await one_execution(tmp_path, full)
    (end,) = events(log, Finished)
    assert (end.ending, end.did_work, len(proxy.requests)) == (Ending.CONTEXT_LIMIT, True, 2)


async def test_the_harness_time_out_is_finished_with_the_work_as_it_stands(tmp_path: Path) -> None:
    harness = command("echo half > half.txt; sleep 60")
    log, proxy = await one_execution(tmp_path, never, toml="[agent]\ntimeout_sec = 0.5\n", harness=harness)
    (end,) = events(log, Finished)
    assert (end.ending, end.did_work) == (Ending.HARNESS_TIMEOUT, True)
    assert proxy.closed == ["g000000.0.0"]


async def test_the_harness_limit_counts_served_time_only(tmp_path: Path) -> None:
    """The proxy held it up for longer than its whole limit: it may finish, and both clocks are logged."""
    held_us = 30_000_000

    def slow(execution: str, request: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        proxies[0].held_us = held_us
        status, answer = writes_42(execution, request)
        return status, {**answer, "wait_s": 0.7}

    proxies: list[FakeProxy] = []
    write_task(tmp_path / "tasks" / "one", toml="[agent]\ntimeout_sec = 0.5\n")
    log, proxy = MemoryLog(), FakeProxy(slow)
    proxies.append(proxy)
    settings = settings_for(tmp_path, await proxy.start(), group_size=1)
    async with runner_on(log, settings, tmp_path) as runner:
        running = asyncio.create_task(runner.run())
        await settled(log, 1)
        publish(log, 1)
        await running
    await proxy.stop()
    (end,) = events(log, Finished)
    assert end.ending is Ending.COMPLETED
    assert end.wall_us > 1_400_000 and end.served_us == 0


async def test_the_overall_time_out_discards_and_is_not_tried_again(tmp_path: Path) -> None:
    harness = command("echo half > half.txt; sleep 60")
    log, proxy = await one_execution(tmp_path, never, harness=harness, overall_timeout_s=0.5)
    (end,) = events(log, Discarded)
    assert (end.reason, end.final) == (DiscardReason.OVERALL_TIMEOUT, True)
    assert not events(log, Finished) and proxy.closed == ["g000000.0.0"]


async def test_a_crash_after_work_is_scored(tmp_path: Path) -> None:
    log, _ = await one_execution(tmp_path, never, harness=command("echo part > part.txt; echo its last words; kill -9 $$"))
    (end,) = events(log, Finished)
    assert (end.ending, end.did_work, end.exit_code) == (Ending.HARNESS_CRASHED, True, -9)
    assert "its last words" in end.detail


async def test_a_crash_without_work_is_tried_once_more(tmp_path: Path) -> None:
    log, _ = await one_execution(tmp_path, never, harness=command("exit 3"), terminals=2)
    assert [(d.execution, d.reason, d.final) for d in in_order(events(log, Discarded))] == [
        ("g000000.0.0", DiscardReason.CRASHED_WITHOUT_WORK, False),
        ("g000000.0.1", DiscardReason.CRASHED_WITHOUT_WORK, True),
    ]
    assert len(events(log, Dispatched)) == 2


async def test_an_environment_that_never_comes_up_is_tried_within_the_budget(tmp_path: Path) -> None:
    """C35 (b)."""
    write_task(tmp_path / "tasks" / "one", dockerfile="FROM x\nRUN apt-get install -y cowsay\n")
    log = MemoryLog()
    await run_once(tmp_path, log, never, 3, group_size=1)
    ends = in_order(events(log, Discarded))
    assert [(d.reason, d.final) for d in ends] == [(DiscardReason.ENVIRONMENT, final) for final in (False, False, True)]
    assert "cowsay" in ends[0].detail and not events(log, Started)


async def test_an_agent_that_leaves_nothing_is_finished_without_work(tmp_path: Path) -> None:
    log, _ = await one_execution(tmp_path, lambda execution, request: (200, says("no")))
    (end,) = events(log, Finished)
    assert (end.ending, end.did_work) == (Ending.COMPLETED, False)


async def test_a_lost_endpoint_is_a_new_attempt_once(tmp_path: Path) -> None:
    log, _ = await one_execution(
        tmp_path, lambda execution, request: (503, {}), harness=HarnessSettings(patience_s=0.5), terminals=2
    )
    assert [(d.reason, d.final) for d in in_order(events(log, Discarded))] == [
        (DiscardReason.LOST, False),
        (DiscardReason.LOST, True),
    ]


async def test_the_agent_waits_out_a_restart_of_the_proxy(tmp_path: Path) -> None:
    """The proxy is away for a while in the middle: the agent sees one slow call."""
    write_task(tmp_path / "tasks" / "one")
    log, proxy = MemoryLog(), FakeProxy(writes_42)
    settings = settings_for(tmp_path, await proxy.start(), group_size=1)
    await proxy.stop()
    async with runner_on(log, settings, tmp_path) as runner:
        running = asyncio.create_task(runner.run())
        async with asyncio.timeout(20):
            while not events(log, Started):
                await asyncio.sleep(0.02)
        await asyncio.sleep(0.6)
        await proxy.start()
        await settled(log, 1)
        publish(log, 1)
        await running
    await proxy.stop()
    (end,) = events(log, Finished)
    assert end.ending is Ending.COMPLETED and not events(log, Discarded)


async def test_what_is_still_running_after_the_last_step_is_cancelled(tmp_path: Path) -> None:
    write_task(tmp_path / "tasks" / "one")
    log, proxy = MemoryLog(), FakeProxy(never)
    settings = settings_for(tmp_path, await proxy.start(), harness=command("sleep 60"), max_concurrent=1)
    async with runner_on(log, settings, tmp_path) as runner:
        running = asyncio.create_task(runner.run())
        async with asyncio.timeout(20):
            while not events(log, Started):
                await asyncio.sleep(0.02)
        publish(log, 1)
        await asyncio.wait_for(running, 20)
    await proxy.stop()
    assert {(d.reason, d.final) for d in events(log, Discarded)} == {(DiscardReason.CANCELLED, True)}
    assert len(events(log, Discarded)) == 2


def in_order(found: list[Any]) -> list[Any]:
    return sorted(found, key=lambda event: str(event.execution))


# Restarts


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


# Evaluation


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


# Other harnesses, and without a sandbox


async def test_any_command_line_reaches_the_endpoint_with_its_key(tmp_path: Path) -> None:
    client = (
        "import json, os, sys, urllib.request as u\n"
        "url, key, model, text = sys.argv[1:]\n"
        "body = json.dumps({'model': model, 'messages': [{'role': 'user', 'content': text}]}).encode()\n"
        "r = u.Request(url + '/chat/completions', body, {'authorization': 'Bearer ' + key})\n"
        "open('answer.txt', 'w').write(json.load(u.urlopen(r))['choices'][0]['message']['content'])\n"
    )
    line = f"cat > /tmp/c.py <<'END'\n{client}END\npython3 -I /tmp/c.py {{base_url}} {{api_key}} {{model}} {{instruction}}"
    log, proxy = await one_execution(tmp_path, lambda execution, request: (200, says("42")), harness=command(line))
    (end,) = events(log, Finished)
    assert (end.ending, end.did_work) == (Ending.COMPLETED, True), end.detail
    assert proxy.requests[0][1]["messages"][0]["content"] == "Write 42 to answer.txt. (one)"


async def test_without_a_sandbox_the_same_work_is_done(tmp_path: Path) -> None:
    log, _ = await one_execution(tmp_path, writes_42, sandboxed=False)
    (end,) = events(log, Finished)
    assert (end.ending, end.did_work) == (Ending.COMPLETED, True), end.detail


@pytest.mark.slow
async def test_mini_swe_agent_does_its_work_through_the_endpoint(tmp_path: Path) -> None:
    done = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"

    def answer(execution: str, request: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        turn = sum(m["role"] == "tool" for m in request["messages"])
        return 200, calls("bash", {"command": "echo 42 > answer.txt" if turn == 0 else done}, f"call-{turn}")

    write_task(tmp_path / "tasks" / "one", toml="[agent]\ntimeout_sec = 200\n")
    log, proxy = MemoryLog(), FakeProxy(answer)
    limits = Limits(cpu_s=200, memory_mb=0, processes=200)
    settings = settings_for(
        tmp_path, await proxy.start(), group_size=1, harness=HarnessSettings(name="mini-swe-agent"), limits=limits
    )
    async with runner_on(log, settings, tmp_path) as runner:
        running = asyncio.create_task(runner.run())
        await settled(log, 1, 200)
        publish(log, 1)
        await running
    await proxy.stop()
    (end,) = events(log, Finished)
    assert (end.ending, end.did_work, len(proxy.requests)) == (Ending.COMPLETED, True, 2), end.detail

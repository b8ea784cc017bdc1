"""The table of endings (learning.md, 4), each row provoked in a real sandbox."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from gyre_engine.events.executions import Discarded, DiscardReason, Dispatched, Ending, Finished, Started
from gyre_engine.log.memory import MemoryLog
from producers.runner.harnesses import HarnessSettings
from tests.integration.runner_fakes import FakeProxy, calls, says, write_task
from tests.integration.runner_runs import (
    command,
    events,
    in_order,
    never,
    one_execution,
    publish,
    run_once,
    runner_on,
    settings_for,
    settled,
    writes_42,
)


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

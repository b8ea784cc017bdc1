"""Harnesses other than `mini`, and no sandbox: the same work is done."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from gyre_engine.events.executions import Ending, Finished
from gyre_engine.log.memory import MemoryLog
from gyre_engine.sandbox import Limits
from producers.runner.harnesses import HarnessSettings
from tests.integration.runner_fakes import FakeProxy, calls, says, write_task
from tests.integration.runner_runs import command, events, one_execution, publish, runner_on, settings_for, settled, writes_42


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

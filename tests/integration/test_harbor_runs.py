"""Harbor's agents through Harbor's own trial, in an environment of the tests', against the proxy: how they run, end and are judged.

Skips where Harbor is not installed (Python 3.11, or without the extra `harbor`).
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.integration.harbor_bench import (  # isort: skip - says why all of this is skipped
    DOCKERFILE, Run, environment, left, score, settings_for, task,
)  # fmt: skip
from consumers.scoring.harbor_verifier import HarborVerifier
from gyre_engine.events.calls import Role
from gyre_engine.events.executions import Discarded, DiscardReason, Ending, Finished, Started
from gyre_engine.harbor import note, open_environment, stop_leftovers
from gyre_engine.keys import mint
from gyre_engine.log.memory import MemoryLog
from gyre_engine.sampling.script_file import Answer
from gyre_engine.sandbox import Limits
from gyre_engine.tasks import TaskError, require_local
from gyre_engine.work_product import remove_tree
from producers.runner.harnesses import HarnessSettings
from tests.integration.harbor_env import BubbleEnvironment
from tests.integration.harness_bench import bench, scripted, tool_call
from tests.integration.runner_fakes import SECRET, FakeProxy
from tests.integration.runner_runs import events, in_order, never, run_once

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(120)]


@pytest.fixture
async def proxy() -> AsyncIterator[FakeProxy]:
    """One that expects no model call."""
    made = FakeProxy(never)
    made.url = await made.start()  # type: ignore[attr-defined]
    yield made
    await made.stop()


@pytest.fixture(autouse=True)
def nothing_stays(tmp_path: Path) -> Any:
    """Whatever happens: no environment, no workspace, and no process of an agent at the moment its environment stops."""
    BubbleEnvironment.survivors.clear()
    BubbleEnvironment.stopped.clear()
    yield
    assert BubbleEnvironment.survivors == []
    for name in ("bubbles", "workspaces"):
        assert not (tmp_path / name).exists() or list((tmp_path / name).iterdir()) == [], name


async def worked(
    proxy: Any, folder: Path, script: str, raises: str = "", *, given: Any = None, **changes: Any
) -> tuple[Any, Run]:
    settings = settings_for(folder, proxy.url, options={"script": script, "raises": raises}, **changes)
    run = Run(settings, given or task(folder))
    return await run.end(), run


async def test_harbors_oracle_solves_a_task_that_the_sandbox_refuses(proxy: Any, tmp_path: Path) -> None:
    given = task(tmp_path)
    with pytest.raises(TaskError, match="needs docker for `RUN echo made"):
        require_local(given)
    run = Run(settings_for(tmp_path, proxy.url, "harbor:oracle"), given)
    end = await run.end()
    assert isinstance(end, Finished) and (end.ending, end.did_work, end.exit_code) == (Ending.COMPLETED, True, 0)
    assert run.events == [Started(execution=end.execution)] and proxy.closed == [end.execution]
    assert left(end, tmp_path / "left") == {"app/answer.txt": "42\n", "app/seed.txt": "seed\n"}
    judged = await score(end, given, tmp_path)
    assert (judged.reward, judged.flags) == (1.0, ())


async def test_an_agent_that_does_nothing_came_up_and_left_nothing(proxy: Any, tmp_path: Path) -> None:
    """learning.md, 4: scored 0, and in the baseline."""
    given = task(tmp_path)
    end = await Run(settings_for(tmp_path, proxy.url, "harbor:nop"), given).end()
    assert isinstance(end, Finished) and (end.ending, end.did_work) == (Ending.COMPLETED, False)
    judged = await score(end, given, tmp_path)
    assert (judged.reward, judged.flags) == (0.0, ("nothing-left",))


async def test_harbors_mini_swe_agent_talks_to_the_real_proxy(tmp_path: Path) -> None:
    """Installed already (`skip_install`): Gyre's own environment has it. Every sampled token stands in one path of the tree."""
    given = task(tmp_path)
    engine = scripted(
        Answer(tool_call("bash", command="echo 42 > answer.txt"), turn=0),
        Answer(tool_call("bash", command="echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT")),
    )
    async with bench(tmp_path) as on:
        on.cell("cell-0", 0, engine)
        settings = settings_for(tmp_path, on.url, "harbor:mini-swe-agent", {"skip_install": True})
        end = await Run(settings, given).end()
        ran = on._ran(end.execution, end)
    assert isinstance(end, Finished) and end.ending is Ending.COMPLETED, end
    assert ran.roles() == [Role.MAIN, Role.MAIN] and ran.calls[1].parent == ran.calls[0].call
    assert sum(len(call.output_ids) for call in ran.calls) == ran.tree.sampled_tokens
    assert (await score(end, given, tmp_path)).reward == 1.0


@pytest.mark.parametrize(
    ("script", "raises", "ending"),
    [
        ("echo 42 >answer.txt", "", Ending.COMPLETED),
        ("echo 42 >answer.txt; exit 3", "", Ending.HARNESS_CRASHED),
        ("exit 3", "", DiscardReason.CRASHED_WITHOUT_WORK),
        ("true", "ContextWindowExceededError", Ending.CONTEXT_LIMIT),
        ("true", "OutputTokenExceededError", Ending.TOKEN_BUDGET),
        ("echo 42 >answer.txt", "ApiConnectionClosedError", DiscardReason.LOST),
    ],
)
async def test_how_an_agent_ended(proxy: Any, tmp_path: Path, script: str, raises: str, ending: Any) -> None:
    end, _ = await worked(proxy, tmp_path, script, raises)
    assert (end.ending if isinstance(end, Finished) else end.reason) == ending


async def test_at_its_time_out_an_agent_is_ended_with_all_that_it_started_and_its_work_counts(proxy: Any, tmp_path: Path) -> None:
    script = "echo 42 >answer.txt; (setsid sleep 600 >/dev/null 2>&1 &); sleep 600"
    end, _ = await worked(proxy, tmp_path, script, harness_timeout_s=2.0)
    assert isinstance(end, Finished) and end.ending is Ending.HARNESS_TIMEOUT and 1.9e6 < end.wall_us < 20e6
    assert left(end, tmp_path / "left")["app/answer.txt"] == "42\n"


async def test_what_the_proxy_held_an_agent_up_is_not_held_against_it(proxy: Any, tmp_path: Path) -> None:
    """Two clocks: three seconds, of which the proxy says it held it up for an hour, are no second served."""
    proxy.held_us = 3_600_000_000
    end, _ = await worked(proxy, tmp_path, "sleep 3; echo 42 >answer.txt", harness_timeout_s=1.0)
    assert isinstance(end, Finished) and (end.ending, end.served_us) == (Ending.COMPLETED, 0)


async def test_the_overall_limit_discards(proxy: Any, tmp_path: Path) -> None:
    end, _ = await worked(proxy, tmp_path, "echo 42 >answer.txt; sleep 600", overall_timeout_s=2.0)
    assert isinstance(end, Discarded) and end.reason is DiscardReason.OVERALL_TIMEOUT


async def test_a_cancelled_execution_leaves_nothing(proxy: Any, tmp_path: Path) -> None:
    settings = settings_for(tmp_path, proxy.url, options={"script": "touch /app/begun; sleep 600"})
    run = Run(settings, task(tmp_path))
    ending = asyncio.create_task(run.end())
    async with asyncio.timeout(60):
        while not list(tmp_path.glob("bubbles/*/app/begun")):
            await asyncio.sleep(0.05)
    run.cancelled.set()
    end = await ending
    assert isinstance(end, Discarded) and end.reason is DiscardReason.CANCELLED


async def test_an_execution_that_is_cancelled_while_its_environment_is_made_leaves_nothing(proxy: Any, tmp_path: Path) -> None:
    run = Run(settings_for(tmp_path, proxy.url, harbor=environment(tmp_path, endless=True)), task(tmp_path))
    ending = asyncio.create_task(run.end())
    async with asyncio.timeout(60):
        while not list(tmp_path.glob("bubbles/*/tmp")):
            await asyncio.sleep(0.05)
    run.cancelled.set()
    end = await ending
    assert isinstance(end, Discarded) and end.reason is DiscardReason.CANCELLED and run.events == []


@pytest.mark.parametrize(
    ("given", "changes", "says"),
    [
        ({}, {"broken": True}, "no room for another bubble"),
        ({"toml": '[environment]\nnetwork_mode = "no-network"\n'}, {}, "network_mode='no-network' is not supported by bubble"),
        ({"toml": '[environment]\nworkdir = "/"\n'}, {}, "working directory is /.*runner.keep"),
        ({"toml": '[[artifacts]]\nsource = "/x"\nservice = "db"\n'}, {}, "compose|service 'db'"),
    ],
)
async def test_an_environment_that_does_not_come_up_is_told(
    proxy: Any, tmp_path: Path, given: dict[str, Any], changes: dict[str, Any], says: str
) -> None:
    end, run = await worked(proxy, tmp_path, "true", given=task(tmp_path, **given), harbor=environment(tmp_path, **changes))
    assert isinstance(end, Discarded) and end.reason is DiscardReason.ENVIRONMENT and run.events == []
    assert re.search(says, end.detail), end.detail


async def test_each_execution_has_a_key_of_its_own_in_its_environment_only(proxy: Any, tmp_path: Path) -> None:
    script = 'printf "%s %s" "$OPENAI_API_KEY" "$OPENAI_BASE_URL" >answer.txt'
    given = task(tmp_path)
    settings = settings_for(tmp_path, proxy.url, options={"script": script})
    names = ("g000000.0.0", "g000000.1.0")
    ends = await asyncio.gather(*(Run(settings, given, name).end() for name in names))
    for name, end in zip(names, ends, strict=True):
        assert left(end, tmp_path / name)["app/answer.txt"] == f"{mint(SECRET, name)} {proxy.url}/v1"


async def test_folders_that_are_named_are_work_too(proxy: Any, tmp_path: Path) -> None:
    """Beside the working directory: what task.toml declares, what is published, and runner.keep. All of it reaches the verifier."""
    toml = 'artifacts = ["/srv/out"]\n[agent]\ntimeout_sec = 60\n'
    all_four = "cat /srv/out /data/x /logs/artifacts/a /app/b | tr -d '\\n' | grep -qx 1234"
    test = f"#!/bin/bash\n{all_four} && test ! -e /app/seed.txt && echo 1 >/logs/verifier/reward.txt\n"
    given = task(tmp_path, toml=toml, test=test)
    script = (
        "echo 1 >/srv/out; echo 2 >/data/x; mkdir -p /logs/artifacts; echo 3 >/logs/artifacts/a; echo 4 >/app/b; rm /app/seed.txt"
    )
    kept = replace(environment(tmp_path), keep=("/data",))
    end, _ = await worked(proxy, tmp_path, script, given=given, harbor=kept)
    found = left(end, tmp_path / "left")
    assert found == {
        "app/b": "4\n", "app/installed.txt": "installed\n", "data/x": "2\n", "logs/artifacts/a": "3\n", "srv/out": "1\n"
    }  # fmt: skip
    assert (await score(end, given, tmp_path, HarborVerifier(kept, tmp_path / "scratch"))).reward == 1.0


async def test_an_agent_that_writes_its_own_reward_plants_modules_and_links_out_is_paid_nothing(
    proxy: Any, tmp_path: Path
) -> None:
    """C50, in an environment of Harbor's."""
    dockerfile = f"{DOCKERFILE}COPY conftest.py /app/\n"
    test = "#!/bin/bash\ncat /app/conftest.py >/dev/null && grep -q honest /app/conftest.py || exit 3\n"
    test += '[ "$(cat /app/answer.txt 2>/dev/null)" = 42 ]; echo $((1 - $?)) >/logs/verifier/reward.txt\n'
    folder = tmp_path / "tasks" / "one"
    given = task(tmp_path, dockerfile=dockerfile, test=test)
    (folder / "environment" / "conftest.py").write_text("# honest\n")
    script = (
        "mkdir -p /logs/verifier; echo 1 >/logs/verifier/reward.txt; echo 1 >/app/conftest.py; echo 1 >/app/sitecustomize.py; "
        "ln -s /etc/passwd /app/answer.txt; rm -rf /logs/artifacts; ln -s /tests /logs/artifacts; echo 1 >/tests/test.sh"
    )
    end, _ = await worked(proxy, tmp_path, script, given=given)
    judged = await score(end, given, tmp_path)
    assert judged.reward == 0.0
    assert {flag.split()[0] for flag in judged.flags} == {"planted", "left"}
    said = " ".join(judged.flags)
    for what in (
        "reward.txt: written",
        "planted app/sitecustomize.py",
        "logs/artifacts: a link",
        "app/answer.txt: a link to /etc",
    ):
        assert what in said, judged.flags


async def test_a_run_starts_its_groups_in_environments_and_tries_again_what_did_not_come_up(tmp_path: Path) -> None:
    """The runner itself: two executions of a group, then one whose environment never comes up, within a budget of two attempts."""
    task(tmp_path)
    log = MemoryLog()
    oracle = {"harness": HarnessSettings(name="harbor:oracle"), "limits": Limits()}
    await run_once(tmp_path, log, never, harbor=environment(tmp_path), **oracle)
    ends = in_order(events(log, Finished))
    assert [(e.execution, e.ending, e.did_work) for e in ends] == [
        (f"g000000.{n}.0", Ending.COMPLETED, True) for n in (0, 1)
    ] and len(events(log, Started)) == 2  # fmt: skip
    broken = MemoryLog()
    await run_once(tmp_path, broken, never, group_size=1, attempts=2, harbor=environment(tmp_path, broken=True), **oracle)
    assert [(e.reason, e.final) for e in in_order(events(broken, Discarded))] == [
        (DiscardReason.ENVIRONMENT, False), (DiscardReason.ENVIRONMENT, True)
    ] and events(broken, Started) == []  # fmt: skip


async def test_environments_of_a_dead_runner_are_stopped_at_the_next_start(tmp_path: Path) -> None:
    """What a killed one leaves: a folder with a note, and an environment that still stands."""
    given = task(tmp_path)
    where = tmp_path / "workspaces" / "g0.0.0"
    where.mkdir(parents=True)
    note(where, "run-g0.0.0__env", given.folder, environment(tmp_path))
    standing = open_environment(environment(tmp_path), given.folder, "run-g0.0.0__env", tmp_path / "made")
    await standing.start(force_build=False)
    await standing.exec("setsid sleep 600 >/dev/null 2>&1 &")
    assert await asyncio.to_thread(stop_leftovers, tmp_path / "workspaces") == 1
    assert BubbleEnvironment.stopped == ["run-g0.0.0__env"] and list((tmp_path / "bubbles").iterdir()) == []
    remove_tree(where)

"""Harbor's own docker environment: an image that is built, an agent in it that reaches the proxy, a verifier in a fresh container.

Skips where Harbor is not installed or docker does not run. The image is debian:trixie-slim, from docker's cache or the registry.
"""

from __future__ import annotations

import asyncio
import gc
import shutil
import subprocess
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.integration.harbor_bench import (  # isort: skip - says why all of this is skipped
    WORKER, Run, left, score, settings_for, task,
)  # fmt: skip
from consumers.scoring.harbor_verifier import HarborVerifier
from gyre_engine.events.executions import DiscardReason, Ending, Finished
from gyre_engine.harbor import HarborSettings, note, open_environment, stop_leftovers
from producers.runner.settings import RunnerSettings
from tests.integration.runner_fakes import FakeProxy, says

if shutil.which("docker") is None or subprocess.run(["docker", "info"], capture_output=True, check=False).returncode != 0:
    pytest.skip("docker does not run here", allow_module_level=True)

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(600)]
DOCKER = HarborSettings("docker")
DOCKERFILE = "FROM debian:trixie-slim\nWORKDIR /app\nRUN echo made >/opt/tool && useradd judge\nCOPY seed.txt /app/\n"
TOML = '[agent]\ntimeout_sec = 60.0\n[verifier]\ntimeout_sec = 60.0\nuser = "judge"\n'
ASK = r"""
body='{"messages": []}'; url=${OPENAI_BASE_URL#http://}; host=${url%%/*}
exec 3<>/dev/tcp/${host%:*}/${host#*:}
printf 'POST /v1/chat/completions HTTP/1.1\r\nauthorization: Bearer %s\r\n' "$OPENAI_API_KEY" >&3
printf 'content-length: %s\r\n\r\n%s' ${#body} "$body" >&3
while read -r line <&3 && [ "$line" != $'\r' ]; do case $line in content-length:*) length=${line#*: };; esac; done
head -c ${length%$'\r'} <&3 | grep -o '"content": "42"' | grep -o 42 >answer.txt
"""
"""Asks the proxy with what a shell has, and writes what it says."""


def containers() -> list[str]:
    """Of these tests' executions and verifiers."""
    shown = subprocess.run(["docker", "ps", "-a", "--format", "{{.Names}}"], capture_output=True, text=True, check=True)
    return [name for name in shown.stdout.split() if name.startswith(("workspaces-g", "run-g"))]


@pytest.fixture
async def proxy() -> AsyncIterator[FakeProxy]:
    made = FakeProxy(lambda execution, request: (200, says("42")))
    made.host = "0.0.0.0"
    await made.start()
    yield made
    await made.stop()


@pytest.fixture(autouse=True)
def nothing_stays() -> Any:
    yield
    gc.collect()  # Harbor leaves a folder's removal to the collector, which then warns: here warnings are no errors
    assert containers() == []


def settings(proxy: FakeProxy, folder: Path, script: str, **changes: Any) -> RunnerSettings:
    made = settings_for(folder, f"http://127.0.0.1:{proxy.port}", WORKER, {"script": script}, harbor=DOCKER, **changes)
    return replace(made, public_url=f"http://host.docker.internal:{proxy.port}")


def verifier(folder: Path) -> HarborVerifier:
    return HarborVerifier(DOCKER, folder / "run" / "scratch")


async def test_an_agent_in_a_container_asks_the_proxy_and_is_judged_in_another(proxy: FakeProxy, tmp_path: Path) -> None:
    given = task(tmp_path, dockerfile=DOCKERFILE, toml=TOML)
    end = await Run(settings(proxy, tmp_path, f"test -s /opt/tool && rm seed.txt\n{ASK}"), given).end()
    assert isinstance(end, Finished) and end.ending is Ending.COMPLETED, end
    assert [name for name, _ in proxy.requests] == [end.execution]
    assert left(end, tmp_path / "left") == {"app/answer.txt": "42\n", "app/installed.txt": "installed\n"}
    judged = await score(end, given, tmp_path, verifier(tmp_path))
    assert (judged.reward, judged.flags) == (1.0, ())


async def test_a_container_is_ended_at_the_agents_limit_and_what_it_planted_is_paid_nothing(
    proxy: FakeProxy, tmp_path: Path
) -> None:
    """C50, and a time-out whose work counts as it stands."""
    script = (
        "echo 1 >/logs/verifier/reward.txt; echo 1 >/app/sitecustomize.py; ln -s /etc/passwd /app/answer.txt; "
        "mkdir -p /tests; printf 'echo 1 >/logs/verifier/reward.txt' >/tests/test.sh; rm -rf /logs/artifacts; "
        "ln -s /tests /logs/artifacts; "
        "(setsid sleep 600 >/dev/null 2>&1 &); sleep 600"
    )
    given = task(tmp_path, dockerfile=DOCKERFILE, toml=TOML)
    end = await Run(settings(proxy, tmp_path, script, harness_timeout_s=3.0), given).end()
    assert isinstance(end, Finished) and end.ending is Ending.HARNESS_TIMEOUT and end.wall_us < 20e6, end
    judged = await score(end, given, tmp_path, verifier(tmp_path))
    assert judged.reward == 0.0
    for what in (
        "reward.txt: written",
        "planted app/sitecustomize.py",
        "logs/artifacts: a link",
        "app/answer.txt: a link to /etc",
    ):
        assert what in " ".join(judged.flags), judged.flags


async def test_an_image_that_does_not_build_is_told_and_not_run(proxy: FakeProxy, tmp_path: Path) -> None:
    given = task(tmp_path, dockerfile="FROM debian:trixie-slim\nRUN exit 7\n")
    run = Run(settings(proxy, tmp_path, "true"), given)
    end = await run.end()
    assert not isinstance(end, Finished) and end.reason is DiscardReason.ENVIRONMENT and run.events == [], end
    assert "exit code: 7" in end.detail


async def test_a_container_that_a_dead_runner_left_is_stopped_at_the_next_start(tmp_path: Path) -> None:
    given = task(tmp_path, dockerfile=DOCKERFILE)
    where = tmp_path / "workspaces" / "g0.0.0"
    where.mkdir(parents=True)
    note(where, "run-g0.0.0__env", given.folder, DOCKER)
    await open_environment(DOCKER, given.folder, "run-g0.0.0__env", tmp_path / "made").start(force_build=False)
    assert len(containers()) == 1
    assert await asyncio.to_thread(stop_leftovers, tmp_path, "*/*") == 1

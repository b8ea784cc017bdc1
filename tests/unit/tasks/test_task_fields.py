"""Every field of Harbor's task format counts, or is named: none is dropped unseen."""

from __future__ import annotations

from pathlib import Path

import pytest

from gyre_engine.tasks import TaskError, filled, read_task, require_local
from tests.unit.tasks.test_tasks import make

FIELDS = """
schema_version = "1.4"
source = "somewhere"
artifacts = ["/app/out", "/var/log/x"]
own = 1
[task]
name = "org/one"
[metadata]
anything = [1]
[agent]
timeout_sec = 5
user = "agent"
network_mode = "allowlist"
allowed_hosts = ["example.com"]
[verifier]
timeout_sec = 5
user = 0
network_mode = "public"
allowed_hosts = []
environment_mode = "separate"
[verifier.env]
A = "b"
[environment]
build_timeout_sec = 60
os = "linux"
cpus = 2
memory_mb = 512
storage_mb = 1024
gpus = 0
gpu_types = ["H100"]
skills_dir = "/skills"
workdir = "/app"
network_mode = "no-network"
allow_internet = false
memry = "2G"
[environment.healthcheck]
command = "true"
[environment.env]
C = "d"
[solution.env]
E = "f"
"""
"""All fields of harbor/models/task/config.py (0.26) that a task of one step may have, but for those that need a container."""


def test_what_has_no_effect_in_the_sandbox_is_named(tmp_path: Path) -> None:
    task = read_task(make(tmp_path / "t", task_toml=FIELDS))
    require_local(task)
    assert {text.split(":")[0] for text in task.ignored} == {
        "agent.user", "agent.network_mode", "agent.allowed_hosts", "verifier.user", "verifier.network_mode", "verifier.allowed_hosts",
        "environment.build_timeout_sec", "environment.cpus", "environment.storage_mb", "environment.gpu_types",
        "environment.skills_dir", "environment.network_mode", "environment.allow_internet", "environment.memry",
        "environment.healthcheck", "solution.env", "artifacts /var/log/x", "own",
    }  # fmt: skip
    assert "environment.memry: not a key of Harbor's" in task.ignored
    assert read_task(make(tmp_path / "plain")).ignored == ()


@pytest.mark.parametrize(
    ("files", "says"),
    [
        ({"task_toml": "[environment]\ngpus = 1\n"}, "environment.gpus"),
        ({"task_toml": '[environment.tpu]\ntype = "v6e"\n'}, "environment.tpu"),
        ({"task_toml": '[[environment.mcp_servers]]\nname = "m"\n'}, "environment.mcp_servers"),
        ({"task_toml": "[verifier.environment]\ncpus = 1\n"}, "verifier.environment"),
        ({"task_toml": '[[verifier.collect]]\ncommand = "x"\n'}, "verifier.collect"),
        ({"environment__docker-compose_yaml": "services: {}"}, r"environment/docker-compose.yaml \(several services\)"),
        ({"tests__Dockerfile": "FROM x"}, r"tests/Dockerfile \(an image of its own for the verifier\)"),
        ({"trajectory_json": "{}"}, r"trajectory.json \(a conversation to begin from\)"),
    ],
)
def test_what_only_a_container_gives_is_refused_by_name(tmp_path: Path, files: dict[str, str], says: str) -> None:
    task = read_task(make(tmp_path / "t", **files))
    with pytest.raises(TaskError, match=f"needs docker for {says}.*runner.environment"):
        require_local(task)


def test_a_task_for_windows_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TaskError, match="only tasks for linux"):
        read_task(make(tmp_path / "t", task_toml='[environment]\nos = "Windows"\n'))


def test_marks_of_benchmark_data_are_not_for_the_agent(tmp_path: Path) -> None:
    text = "<!-- canary GUID 1 -->\n# a Canary string\n\n# Title\nDo it. canary\n"
    assert read_task(make(tmp_path / "t", instruction_md=text)).instruction == "# Title\nDo it. canary\n"


def test_variables_are_taken_from_our_own_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GYRE_TEST_GIVEN", "x")
    monkeypatch.delenv("GYRE_TEST_ABSENT", raising=False)
    env = 'A = "${GYRE_TEST_GIVEN}"\nB = "${GYRE_TEST_ABSENT:-b}"\nC = "say ${D}"\n'
    task = read_task(make(tmp_path / "t", task_toml=f"[environment.env]\n{env}"))
    assert filled(task, task.env) == {"A": "x", "B": "b", "C": "say ${D}"}
    absent = read_task(make(tmp_path / "u", task_toml='[verifier.env]\nKEY = "${GYRE_TEST_ABSENT}"\n'))
    with pytest.raises(TaskError, match=r"KEY is \$\{GYRE_TEST_ABSENT\}, but the environment has no GYRE_TEST_ABSENT: export it"):
        filled(absent, absent.verifier_env)

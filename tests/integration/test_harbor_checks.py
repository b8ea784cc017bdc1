"""What Harbor cannot do here is told before a run starts, with the nearest name or the remedy."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.integration.harbor_bench import ENVIRONMENT, WORKER, environment  # isort: skip - says why all of this is skipped
from gyre_engine.harbor import HarborSettings
from producers.runner.harbor import find_agent
from producers.runner.harnesses import HarnessError, HarnessSettings

URL = "http://127.0.0.1:1"
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.mark.parametrize(
    ("agent", "where", "url", "says"),
    [
        ("harbor:mini-swe", ENVIRONMENT, URL, r"no agent 'mini-swe' \(did you mean 'mini-swe-agent'\?\)"),
        ("harbor:no.such:Agent", ENVIRONMENT, URL, "No module named 'no'"),
        ("harbor:tests.integration.harbor_env:Nobody", ENVIRONMENT, URL, "has no class 'Nobody'"),
        ("harbor:gemini-cli", ENVIRONMENT, URL, "gemini-cli speaks google_generate_content only"),
        (WORKER, "dokcer", URL, r"no environment 'dokcer' \(did you mean 'docker'\?\)"),
        (WORKER, "tests.integration.harbor_env:Worker", URL, "must subclass BaseEnvironment"),
        (WORKER, "daytona", URL, r"runner.environment 'daytona' cannot be used"),
        (WORKER, ENVIRONMENT, "", r"runs inside .*set proxy.public_url"),
    ],
)
def test_what_is_wrong_is_named(agent: str, where: str, url: str, says: str) -> None:
    with pytest.raises(HarnessError, match=says):
        find_agent(HarnessSettings(name=agent), HarborSettings(where), url)


@pytest.mark.skipif(shutil.which("docker") is not None, reason="docker is there")
def test_a_missing_docker_is_named() -> None:
    with pytest.raises(HarnessError, match=r"runner.environment 'docker' cannot be used: Docker is not installed"):
        find_agent(HarnessSettings(name="harbor:oracle"), HarborSettings("docker"), URL)


def test_an_option_that_an_agent_does_not_know_is_named(tmp_path: Path) -> None:
    with pytest.raises(HarnessError, match="Unknown option 'cost_limt'"):
        find_agent(HarnessSettings(name="harbor:mini-swe-agent", options={"cost_limt": 1}), environment(tmp_path), URL)


def test_agents_inside_need_an_address_and_those_of_our_process_none(tmp_path: Path) -> None:
    where = environment(tmp_path)
    assert find_agent(HarnessSettings(name="harbor:claude-code"), where, URL).inside
    assert find_agent(HarnessSettings(name="harbor:claude-code"), where, URL).provider == "anthropic"
    assert not find_agent(HarnessSettings(name="harbor:oracle"), where, "").inside

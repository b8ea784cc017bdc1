"""What can be said of Harbor without Harbor: the config, the endings, which folders are work."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from gyre_engine.config import ConfigError, load_config
from gyre_engine.events.executions import Ending
from gyre_engine.harbor import HarborError, options, require, work_folders
from gyre_engine.harbor.work import WorkError
from infra.stack import wiring
from producers.runner.harbor.endings import ending_of
from producers.runner.harnesses import Trouble


def config(tmp_path: Path, text: str) -> Any:
    path = tmp_path / "exp.toml"
    path.write_text(text)
    return load_config(path)


@pytest.mark.skipif(importlib.util.find_spec("harbor") is not None, reason="Harbor is installed")
def test_a_missing_harbor_is_told_with_the_command_that_installs_it() -> None:
    with pytest.raises(
        HarborError, match=r"needs Python 3.12 or newer \(this is 3\.\d+\.\d+.*uv sync --python 3.12 --extra harbor"
    ):
        require()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('[harness]\nname = "harbor:oracle"\n', "line 2: harness.name is 'harbor:oracle'.*needs runner.environment"),
        ('[runner]\nenvironment = "docker"\n', "line 2: runner.environment is 'docker', where only Harbor's agents run"),
        ('[harness]\nname = "harbour:oracle"\n', "harness.name must be one of .*harbor:AGENT"),
        ('[proxy]\npublic_url = "host:{port}"\n', "proxy.public_url is no URL"),
        ('[proxy]\npublic_url = "http://a:b@host"\n', "proxy.public_url must not hold credentials"),
        ('[runner]\nkeep = ["srv"]\n', "runner.keep must hold absolute paths below /, got 'srv'"),
    ],
)
def test_what_does_not_fit_together_is_told(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        config(tmp_path, text)


def test_a_config_says_where_and_how(tmp_path: Path) -> None:
    text = '[harness]\nname = "harbor:x"\n[runner]\nenvironment = "docker"\nkeep = ["/srv"]\n[runner.environment_options]\ncpu = "2"\n'
    made = config(tmp_path, text + '[proxy]\npublic_url = "http://host.docker.internal:{port}/v1"\n')
    harbor = wiring.harbor(made)
    assert harbor is not None and (harbor.environment, harbor.options, harbor.keep) == ("docker", {"cpu": 2}, ("/srv",))
    assert wiring.public_url(made, "http://0.0.0.0:4100") == "http://host.docker.internal:4100"
    assert wiring.harbor(config(tmp_path, "")) is None


def test_options_are_read_as_harbors_command_line_reads_them() -> None:
    given = {"a": "true", "b": '["x"]', "c": "plain words", "d": "1.5"}
    assert options(given) == {"a": True, "b": ["x"], "c": "plain words", "d": 1.5}


def named(*names: str) -> BaseException:
    """An exception whose classes are called so, the outermost first."""
    cls: type = Exception
    for name in reversed(names):
        cls = type(name, (cls,), {})
    made: BaseException = cls()
    return made


@pytest.mark.parametrize(
    ("error", "ending"),
    [
        (None, Ending.COMPLETED),
        (named("NonZeroAgentExitCodeError"), Trouble.CRASHED),
        (named("ContextWindowExceededError", "ApiError", "NonZeroAgentExitCodeError"), Ending.CONTEXT_LIMIT),
        (named("MyOverload", "ApiOverloadedError", "ApiError"), Trouble.ENDPOINT_LOST),
        (named("AgentTimeoutError"), Ending.HARNESS_TIMEOUT),
        (named("UnknownApiError", "ApiError"), Trouble.CRASHED),
    ],
)
def test_an_exception_of_harbors_is_an_ending_of_ours(error: BaseException | None, ending: object) -> None:
    assert ending_of(error) == ending


@dataclass
class Said:
    stdout: str
    stderr: str = ""
    return_code: int = 0


class Standing:
    """An environment that knows where it is."""

    def __init__(self, here: str) -> None:
        self.here = here

    async def exec(self, command: str) -> Said:
        assert command == "pwd"
        return Said(self.here + "\n")


@dataclass
class Artifact:
    source: str
    service: str | None = None


async def test_work_is_the_working_directory_and_what_is_named_and_no_folder_lies_in_another() -> None:
    """A tree that comes out through a link in another could be written anywhere on the host."""
    found = await work_folders(Standing("/app"), ["out.txt", Artifact("/app/deep/x"), "/srv/a"], ["/srv", "/tests", "/data/"])
    assert found == ("/app", "/data", "/logs/artifacts", "/srv")
    apart = await work_folders(Standing("/app"), ["out.txt"], [], here=False)
    assert apart == ("/app/out.txt", "/logs/artifacts")


@pytest.mark.parametrize(
    ("here", "artifacts", "says"),
    [("/", [], "cannot be kept whole"), ("", [], "did not tell"), ("/app", [Artifact("/x", "db")], "service 'db'")],
)
async def test_work_that_cannot_be_kept_is_told(here: str, artifacts: list[Any], says: str) -> None:
    with pytest.raises(WorkError, match=says):
        await work_folders(Standing(here), artifacts, [])

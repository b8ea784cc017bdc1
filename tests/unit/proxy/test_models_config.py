"""[[models]] of a config: what is refused before anything starts, and what the proxy is told."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gyre_engine.config import Config, ConfigError, load_config, read_source, to_json
from infra.stack import wiring
from infra.stack.checks import check_before_start
from infra.stack.launch import Launch
from infra.stack.layout import StackFolder
from producers.proxy.settings import POLICY, Frozen, Upstream

WHOLE = """
[model]
name = "tiny"
aliases = ["gpt-5"]

[[models]]
name = "judge"
kind = "upstream"
url = "https://models.example.com/v1"
model = "big"
key_env = "JUDGE_KEY"

[[models]]
name = "before"
kind = "frozen"
url = "http://127.0.0.1:30000"

[[models]]
name = "*"
"""


def loaded(folder: Path, text: str) -> Config:
    path = folder / "exp.toml"
    path.write_text(text)
    return load_config(path)


def test_the_proxy_is_told_what_each_name_stands_for(tmp_path: Path) -> None:
    launch = Launch(
        run="r", config=to_json(loaded(tmp_path, WHOLE)), bootstrap_servers="127.0.0.1:1", prefix="gyre", partitions=4,
        replication=1, proxy_url="http://127.0.0.1:2", cells=(), clickhouse_url="",
    )  # fmt: skip
    assert wiring.proxy(launch, StackFolder(tmp_path)).models == {
        "tiny": POLICY,
        "gpt-5": POLICY,
        "judge": Upstream("https://models.example.com/v1", "big", "JUDGE_KEY"),
        "before": Frozen("before", "http://127.0.0.1:30000"),
        "*": POLICY,
    }


def entry(**fields: str) -> str:
    return "[[models]]\n" + "".join(f"{key} = {json.dumps(value)}\n" for key, value in fields.items())


NO_URL = "line 4: models.url of 'x' is no URL: write http://HOST:PORT or https://HOST/PATH"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (entry(name="policy"), "line 2: models.name 'policy' stands for two things"),
        (entry(name="x") + entry(name="x"), "line 4: models.name 'x' stands for two things"),
        ('[model]\naliases = ["x"]\n' + entry(name="x"), "line 4: models.name 'x' stands for two things"),
        (entry(kind="policy"), "line 1: models.name is empty"),
        (entry(name="x", kind="upstraem"), "line 3: models.kind must be one of policy, frozen, upstream; got 'upstraem'"),
        (entry(name="x", kind="frozen"), "line 1: models.url of 'x' is empty: a model of kind frozen needs one"),
        (entry(name="x", kind="upstream"), "line 1: models.url of 'x' is empty: a model of kind upstream needs one"),
        (entry(name="x", url="http://h"), "line 3: models.url of 'x' is given, but its kind is policy"),
        (entry(name="x", kind="upstream", url="models.example.com/v1"), NO_URL),
        (entry(name="x", kind="upstream", url="ftp://h"), NO_URL),
        (entry(name="x", kind="upstream", url="http://"), NO_URL),
        (entry(name="x", kind="frozen", url="http://h:port"), NO_URL),
        (entry(name="x", kind="frozen", url="http://[::1"), NO_URL),
        (entry(name="x", kind="frozen", url="http://h h"), NO_URL),
        (entry(name="x", kind="upstream", url="http://me:secret@h"), "line 4: models.url of 'x' must not hold credentials"),
        (entry(name="x", kind="upstream", url="http://h?key=secret"), "line 4: models.url of 'x' must not hold credentials"),
        (entry(name="x", kind="frozen", url="http://h", key_env="K"), "line 5: models.key_env of 'x' is for models of kind"),
        (entry(name="x", model="y"), "line 3: models.model of 'x' is for models of kind upstream"),
        (entry(name="x", kind="upstream", url="http://h", key_env="sk-secret"), "line 5: models.key_env of 'x' is no name"),
        (entry(name="x", key="secret"), r'line 3: \[models\] has no key "key". Did you mean "key_env"'),
    ],
)
def test_a_wrong_entry_is_named_with_its_line_and_without_what_might_be_secret(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as error:
        loaded(tmp_path, text)
    assert "secret" not in str(error.value)


def test_a_key_that_is_not_in_the_environment_is_told_before_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JUDGE_KEY", raising=False)
    config = loaded(tmp_path, WHOLE)

    def problems() -> list[str]:
        with pytest.raises(ConfigError) as error:
            check_before_start(config)
        return str(error.value.found_in(read_source(tmp_path / "exp.toml"))).splitlines()

    text = "line 11: models.key_env: the environment has no JUDGE_KEY for 'judge': export the upstream's key there first"
    assert [line for line in problems() if line.endswith(text)]
    monkeypatch.setenv("JUDGE_KEY", "sk-1")
    assert not [line for line in problems() if "JUDGE_KEY" in line]


def test_the_config_that_a_run_pins_holds_the_name_of_the_key_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUDGE_KEY", "sk-1")
    pinned = to_json(loaded(tmp_path, WHOLE))
    assert "JUDGE_KEY" in pinned and "sk-1" not in pinned

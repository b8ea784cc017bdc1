"""A config that cannot work is refused at once, by a message that names the key and the remedy."""

from pathlib import Path

import pytest

from gyre_engine.config import Config, ConfigError, config_from_json, config_hash, load_config, to_json, with_overrides


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "exp.toml"
    path.write_text(text)
    return path


def test_a_wrong_key_names_its_line_and_the_nearest_right_one(tmp_path: Path) -> None:
    path = write(tmp_path, "[run]\nsteps = 3\n\n[selection]\njmax = 4\n")
    with pytest.raises(ConfigError) as error:
        load_config(path)
    assert f"{path}, line 5" in str(error.value)
    assert '[selection] has no key "jmax". Did you mean "j_max"' in str(error.value)


def test_a_wrong_section_is_named_with_its_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r'line 2: the file has no key "smapling". Did you mean "sampling"'):
        load_config(write(tmp_path, "\n[smapling]\ntemperature = 1\n"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[batch]\ngroups = "many"\n', r"line 2: batch.groups must be int, got 'many' \(str\)"),
        ("[batch]\ngroups = 0\n", "batch.groups must be at least 1, got 0"),
        ("[batch]\ngroups = true\n", "batch.groups must be int"),
        ('[cells]\nengine = "vllm"\n', "cells.engine must be one of native, sglang; got 'vllm'"),
        ("[batch]\ngroup_size = 1\n", "no group could train"),
        ('[harness]\nname = "command"\n', "harness.command is empty"),
        ('[[data]]\npath = "x"\nsplit = "dev"\n', "data.split must be train, val or test; got 'dev'"),
        ("[run\n", "config error in"),
        ("[optimizer]\nlr = -1.0\n", "optimizer.lr must be above 0 and at most 10, got -1.0"),
        ("[optimizer]\nlr = nan\n", "optimizer.lr must be above 0"),
        ("[sampling]\ntop_p = 7.0\n", "sampling.top_p must be above 0 and at most 1, got 7.0"),
        ("[sampling]\ntemperature = 0\n", "sampling.temperature must be above 0"),
        ('[loss]\nname = "xx"\n', "loss.name must be one of ppo, grpo, reinforce, gspo; got 'xx'"),
        ("[run]\ncheckpoint_keep = -1\n", "run.checkpoint_keep must be at least 0"),
        ('[eval]\nafter = "nope"\n', "eval.after must be one of"),
        ("[model]\ncontext = 10\n", "leaves no room for a prompt in model.context"),
    ],
)
def test_a_wrong_value_is_named(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_config(write(tmp_path, text))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read .*nothing.toml: No such file"):
        load_config(tmp_path / "nothing.toml")


def test_overrides_are_typed_and_checked(tmp_path: Path) -> None:
    path = write(tmp_path, "[run]\nsteps = 3\n")
    config = load_config(path, ["run.steps=7", "model.name=tiny", "selection.roles=['main']"])
    assert (config.run.steps, config.model.name, config.selection.roles) == (7, "tiny", ("main",))
    with pytest.raises(ConfigError, match="write section.key=value"):
        load_config(path, ["steps=7"])
    with pytest.raises(ConfigError, match="config error in --set run.steps: run.steps must be int, got 'abc'"):
        load_config(path, ["run.steps=abc"])
    with pytest.raises(ConfigError, match="Did you mean"):
        with_overrides(config, ["run.step=7"])


def test_paths_are_relative_to_the_file(tmp_path: Path) -> None:
    config = load_config(write(tmp_path, '[model]\npath = "model"\n[[data]]\npath = "tasks/train"\n'))
    assert config.model.path == str(tmp_path / "model")
    assert (config.data[0].path, config.data[0].name) == (str(tmp_path / "tasks/train"), "train")


def test_json_round_trip_keeps_all_but_secrets() -> None:
    config = with_overrides(Config(), ["clickhouse.url='http://me:pw@host:8123/db'"])
    text = to_json(with_overrides(config, ["kafka.librdkafka={'sasl.password' = 'pw', 'security.protocol' = 'SSL'}"]))
    assert "pw" not in text
    assert config_from_json(text).kafka.librdkafka["security.protocol"] == "SSL"
    assert config_hash(Config()) == config_hash(config_from_json(to_json(Config())))

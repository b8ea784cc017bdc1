"""A command that is called wrongly says how it is called, with an example, and ends with status 2; an error is never a traceback."""

import shlex
import sys
import tomllib
from pathlib import Path

import pytest

from infra.cli.main import app, main
from infra.cli.usage import EXAMPLES


@pytest.fixture
def gyre(monkeypatch, tmp_path, capsys):
    """Calls the program in an empty folder: (status, stdout, stderr)."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GYRE_HOME", str(tmp_path / ".gyre"))

    def call(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["gyre", *arguments])
        with pytest.raises(SystemExit) as end:
            main()
        said = capsys.readouterr()
        return int(end.value.code or 0), said.out, said.err

    return call


def commands() -> list[str]:
    own = [command.name or command.callback.__name__ for command in app.registered_commands]
    return own + [
        f"{group.name} {command.name}" for group in app.registered_groups for command in group.typer_instance.registered_commands
    ]


def test_every_command_has_an_example_and_its_help_shows_it(gyre):
    assert set(EXAMPLES) == set(commands())
    for command in commands():
        words = command.split()
        status, out, _ = gyre(*words, "--help")
        assert status == 0
        assert shlex.split(EXAMPLES[command])[: 1 + len(words)] == ["gyre", *words]
        assert EXAMPLES[command] in " ".join(out.split())


@pytest.mark.parametrize(
    ("command", "argument", "meaning"),
    [
        ("sql", "QUERY", "SHOW TABLES"),
        ("tail", "TOPIC", "model-calls"),
        ("score", "MODULE:CLASS", "my_scorer:MyScorer"),
        ("eval", "RUN@STEP|FOLDER", "a folder with a model"),
    ],
)
def test_a_missing_argument_is_named_with_its_meaning_and_an_example(gyre, command, argument, meaning):
    status, out, err = gyre(command)
    lines = err.splitlines()
    assert (status, out) == (2, "")
    assert lines[0].startswith(f"gyre: missing argument '{argument}': ")
    assert meaning in lines[0]
    assert lines[1:] == [
        f"usage: gyre {command} [OPTIONS] {argument}", f"example: {EXAMPLES[command]}", f"all of it: gyre {command} --help"
    ]  # fmt: skip


def test_run_needs_an_experiment_or_a_run_and_not_both(gyre):
    for arguments in ((), ("a.toml", "--resume", "latest")):
        status, _, err = gyre("run", *arguments)
        assert status == 2
        assert "an EXPERIMENT.toml, or --resume RUN" in err
        assert EXAMPLES["run"] in err
    status, _, err = gyre("run", "--resume", "latest", "--set", "run.steps=3")
    assert (status, "--set is for new runs" in err) == (2, True)


def test_a_replay_with_changes_is_not_one_to_verify(gyre):
    status, out, err = gyre("replay", "latest", "--verify", "--set", "optimizer.lr=5e-4")
    assert (status, out) == (2, "")
    assert "--verify compares with what the run was trained with; --set changes that" in err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("stat",), "no such command 'stat'"),
        (("statsu",), "Did you mean 'status'?"),
        (("run", "--chekc"), "no such option: --chekc"),
        (("replay", "--until", "x"), "--until"),
        (("replay", "--until", "-1"), "--until"),
        (("eval", "latest@1", "--samples", "0"), "--samples"),
    ],
)
def test_unknown_words_are_named_with_the_nearest(gyre, arguments, said):
    status, _, err = gyre(*arguments)
    assert (status, said in err) == (2, True), err


def test_no_command_shows_the_list_and_version_the_version(gyre):
    status, out, _ = gyre()
    assert status == 2
    assert all(command.split()[0] in out for command in commands())
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]
    assert gyre("--version")[:2] == (0, f"gyre {project['version']}\n")


@pytest.mark.parametrize(
    "command",
    [
        *("runs", "trees", "replay", "tail training", "sql SHOW", "status", "stop", "run --resume latest"),
        *("cells list", "cells add", "cells drain cell-1", "cell start --bootstrap 127.0.0.1:1"),
    ],
)
def test_in_an_empty_folder_a_command_says_so_in_one_line(gyre, command):
    status, out, err = gyre(*command.split())
    assert (status, out) == (1, "")
    assert err.startswith("gyre: ")
    assert err.count("\n") == 1


def test_check_tells_all_errors_of_a_config_each_as_a_line_of_its_own(gyre, tmp_path: Path):
    path = tmp_path / "exp.toml"
    path.write_text("[run]\nstepz = 3\n[batch]\ngroups = 0\n")
    status, _, err = gyre("run", "exp.toml", "--check", "--set", "optimizer.lr=-1.0")
    assert status == 1
    lines = err.splitlines()
    assert any(
        line.startswith('gyre: config error in exp.toml, line 2: [run] has no key "stepz". Did you mean') for line in lines
    )
    assert any(line.startswith("gyre: config error in --set optimizer.lr: optimizer.lr must be above 0") for line in lines)
    assert any(
        line.startswith("gyre: config error in exp.toml, line 4: batch.groups must be at least 1, got 0") for line in lines
    )
    assert len(lines) == 3


def test_check_tells_what_a_right_config_lacks_with_its_lines(gyre, tmp_path: Path):
    path = tmp_path / "exp.toml"
    path.write_text('[model]\npath = "gone"\n[runner]\nsandbox = "none"\n[[data]]\npath = "tasks"\n')
    status, _, err = gyre("run", "exp.toml", "--check", "--set", "eval.after=test")
    assert status == 1
    assert [line.partition(": ")[2].partition(": ")[0] for line in err.splitlines()] == [
        "config error in exp.toml, line 2", "config error in --set eval.after", "config error in exp.toml, line 6"
    ]  # fmt: skip


def test_a_run_is_told_the_same_before_anything_starts(gyre, tmp_path: Path):
    (tmp_path / "exp.toml").write_text('[model]\npath = "gone"\n[runner]\nsandbox = "none"\n')
    status, _, err = gyre("run", "exp.toml")
    assert status == 1
    assert "gyre: config error in exp.toml, line 2: model.path: " in err
    assert "gyre: config error in exp.toml: no [[data]] source" in err
    assert not (tmp_path / ".gyre" / "kafka").exists()


def test_a_model_that_is_not_there_is_named_as_it_was_given_and_not_as_the_configs(gyre, tmp_path: Path):
    (tmp_path / "exp.toml").write_text("[run]\nsteps = 3\n")
    for more in ((), ("--config", "exp.toml")):
        status, _, err = gyre("eval", "nowhere", *more)
        assert status == 1
        assert err == f"gyre: {tmp_path}/nowhere is no folder with a model; a checkpoint is named RUN@STEP, e.g. latest@20\n"
    (tmp_path / "model").mkdir()
    status, _, err = gyre("eval", "model")
    assert (status, "say with --config EXPERIMENT.toml how" in err) == (1, True)

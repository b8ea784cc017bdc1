"""Losses that installed packages add: found by name, loaded when they are used, refused at a start where they cannot work."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import torch

from gyre_engine.config import ConfigError, load_config
from gyre_engine.dead_end import DeadEnd
from gyre_engine.losses import LossConfig, LossError
from gyre_engine.losses.policy import loss_function, policy_loss
from gyre_engine.losses.targets import Targets

SQUARED = """
from gyre_engine.losses.targets import Surrogate

def squared(current, targets, config):
    ratio = (current - targets.behaviour).detach().exp()
    return Surrogate(-(targets.weight * current ** 2).sum(), ratio > 2, ratio)
"""


@pytest.fixture
def install(tmp_path, monkeypatch):
    """A package as pip would leave it: its module, and a dist-info folder that names the entry points."""
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))

    def add(package: str, entries: dict[str, str], code: str = SQUARED) -> None:
        (folder / f"{package}.py").write_text(code)
        info = folder / f"{package}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
        lines = [f"{name} = {value}" for name, value in entries.items()]
        (info / "entry_points.txt").write_text("\n".join(["[gyre.losses]", *lines, ""]))

    add.folder = folder
    return add


def config_with(tmp_path: Path, name: str):
    path = tmp_path / "exp.toml"
    path.write_text(f'[loss]\nname = "{name}"\n')
    return load_config(path)


def test_an_installed_loss_is_found_by_its_name(install, tmp_path):
    install("lossone", {"squared-one": "lossone:squared"})
    assert config_with(tmp_path, "squared-one").loss.name == "squared-one"
    current = torch.tensor([1.0, 3.0], requires_grad=True)
    zeros, empty = torch.zeros(2), torch.zeros(0)
    targets = Targets(torch.tensor([2.0, -1.0]), torch.tensor([0, 1]), zeros, torch.tensor([0, 0]), empty, empty)
    result = policy_loss(current, targets, LossConfig("squared-one"))
    result.loss.backward()
    assert current.grad.tolist() == [-4.0, 6.0]
    assert result.clipped.tolist() == [True, True]


def test_the_example_of_the_docs_works(install):
    """docs/losses.md, as it stands there: ratios 0.5 and 4, capped at 2; a bad token counts half."""
    text = (Path(__file__).parents[3] / "docs" / "losses.md").read_text()
    entry, code = (re.search(rf"```{kind}\n(.*?)```", text, re.DOTALL)[1] for kind in ("toml", "python"))
    ((name, value),) = tomllib.loads(entry)["project"]["entry-points"]["gyre.losses"].items()
    install("my_losses", {name: value}, code)
    current = torch.log(torch.tensor([0.5, 4.0])).requires_grad_()
    zeros, empty = torch.zeros(2), torch.zeros(0)
    targets = Targets(torch.tensor([1.0, -1.0]), torch.tensor([0, 1]), zeros, torch.tensor([0, 0]), empty, empty)
    result = policy_loss(current, targets, LossConfig(name))
    result.loss.backward()
    assert current.grad.tolist() == pytest.approx([-0.5, 1.0])
    assert result.clipped.tolist() == [False, True]


def test_a_config_is_read_without_loading_the_code_of_others(install, tmp_path):
    install("losstwo", {"squared-two": "losstwo:squared"}, "raise RuntimeError('loaded')")
    config_with(tmp_path, "squared-two")
    code = (
        f"import sys, pathlib; sys.path.insert(0, {str(install.folder)!r}); from gyre_engine.config import load_config; "
        f"load_config(pathlib.Path({str(tmp_path / 'exp.toml')!r})); print('torch' in sys.modules, 'losstwo' in sys.modules)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert run.stdout.split() == ["False", "False"]


def test_an_unknown_name_lists_what_there_is(install, tmp_path):
    install("lossthree", {"squared-three": "lossthree:squared"})
    with pytest.raises(
        ConfigError, match=r"decoupled-ppo, reinforce; of installed packages: squared-three. Did you mean .squared-"
    ):
        config_with(tmp_path, "squared-thre")


def test_the_name_of_a_built_in_loss_is_taken(install, tmp_path):
    install("lossfour", {"ppo": "lossfour:squared"})
    with pytest.raises(ConfigError, match=r'a package adds a loss "ppo" \(lossfour:squared of lossfour\), .* built in'):
        config_with(tmp_path, "ppo")


def test_two_packages_with_one_name_are_told(install, tmp_path):
    install("lossfive", {"same": "lossfive:squared"})
    install("losssix", {"same": "losssix:squared"})
    with pytest.raises(ConfigError, match=r'two packages add a loss "same" \(.*: uninstall one'):
        config_with(tmp_path, "same")


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("def squared(current, targets): ...", r"must be a function \(current, targets, config\)"),
        ("squared = 3", "must be a function"),
        ("raise RuntimeError('no')", r"cannot be loaded: RuntimeError\('no'\)"),
        ("def other(): ...", "cannot be loaded: AttributeError"),
        ("def squared(current, targets, config): return 1", "must return a .*Surrogate, got int"),
        ("def squared(current, targets, config): return current[7]", "fails on two targets: IndexError"),
        ("import torch\n" + SQUARED.replace("return ", "current = current.detach()\n    return "), "its loss has no gradient"),
        (SQUARED.replace(".detach()", ""), "its ratio is told, not trained"),
        (SQUARED.replace(").sum()", ")"), r"of two targets it gave the shapes \(2,\), \(2,\), \(2,\)"),
    ],
)
def test_one_that_cannot_work_is_refused(install, code, words, request):
    number = request.node.callspec.indices["code"]
    install(f"bad{number}", {f"bad-{number}": f"bad{number}:squared"}, code)
    with pytest.raises(LossError, match=rf'loss "bad-{number}".*{words}') as error:
        loss_function(f"bad-{number}")
    raised_by_it = "cannot be loaded" in words or "fails on" in words  # who knows what it asked of the world
    assert isinstance(error.value, DeadEnd) is not raised_by_it

"""Every product folder with modules is a package that says what it is, and names no module that is not there."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
TOPS = ("gyre_engine", "producers", "streams", "consumers", "infra", "examples")
NOT_OURS = {"node_modules", "__pycache__"}
COMMAND = "gyre"
"""The one back-ticked word in these docstrings that is no module."""


def folders() -> Iterator[Path]:
    """Product folders that hold modules, without what was installed or made there and without tasks: their files are workspaces."""
    found = [ROOT / top for top in TOPS]
    while found:
        folder = found.pop()
        if (folder / "task.toml").exists():
            continue
        found += [f for f in folder.iterdir() if f.is_dir() and f.name not in NOT_OURS and not f.name.startswith(".")]
        if any(folder.glob("*.py")):
            yield folder


def name_of(folder: Path) -> str:
    return ".".join(folder.relative_to(ROOT).parts)


PACKAGES = sorted(folders())


def docstring(folder: Path) -> str:
    return ast.get_docstring(ast.parse((folder / "__init__.py").read_text(encoding="utf-8"))) or ""


def modules_named(text: str) -> list[str]:
    """Back-ticked lower-case words, also with a slash behind them, and dotted ones from a top package on: others are config keys."""
    words = re.findall(r"`([a-z_][a-z0-9_.]*)/?`", text)
    return [word for word in words if word != COMMAND and ("." not in word or word.split(".")[0] in TOPS)]


@pytest.mark.parametrize("folder", PACKAGES, ids=name_of)
def test_a_folder_with_modules_is_a_package_with_a_docstring(folder: Path) -> None:
    assert (folder / "__init__.py").is_file(), f"{name_of(folder)} has no __init__.py: import-linter does not see it"
    assert docstring(folder)


@pytest.mark.parametrize("folder", PACKAGES, ids=name_of)
def test_every_module_that_a_package_names_is_there(folder: Path) -> None:
    for word in modules_named(docstring(folder)):
        path = ROOT.joinpath(*word.split(".")) if word.split(".")[0] in TOPS else folder / word
        assert path.is_dir() or path.with_suffix(".py").is_file(), f"{name_of(folder)} names {word}, which is not there"

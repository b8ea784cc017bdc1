"""A package that tells its parts in its docstring tells all of them."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
TOLD = ("gyre_engine", "gyre_engine/batching", "gyre_engine/training", "gyre_engine/training/ledger")


def parts(package: Path) -> set[str]:
    """Names of its modules and packages."""
    modules = {file.stem for file in package.glob("*.py")} - {"__init__"}
    return modules | {init.parent.name for init in package.glob("*/__init__.py")}


@pytest.mark.parametrize("name", TOLD)
def test_a_table_of_contents_leaves_nothing_out(name: str) -> None:
    said = ast.get_docstring(ast.parse((ROOT / name / "__init__.py").read_text())) or ""
    assert {part for part in parts(ROOT / name) if f"`{part}`" not in said} == set()

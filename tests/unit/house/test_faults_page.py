"""docs/faults.md names tests that there are, and limits that the code or the config has."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import fields
from typing import Any

import pytest

from gyre_engine.sampling import sglang
from gyre_engine.scheduling.life import LifeLimits
from infra.supervisor.spec import RestartPolicy
from producers.cells.settings import AgentSettings
from producers.proxy import generation, router
from producers.runner.settings import RunnerSettings
from tests.unit.house.test_keys_said import SECTIONS
from tests.unit.house.test_packages import ROOT

PAGE = (ROOT / "docs" / "faults.md").read_text(encoding="utf-8")


def defaults(of: Any) -> dict[str, Any]:
    """Of a dataclass."""
    return {field.name: field.default for field in fields(of)}


LIMITS: dict[str, dict[str, Any]] = {
    **{section: defaults(kind) for section, kind in SECTIONS.items()},
    **{kind.__name__: defaults(kind) for kind in (LifeLimits, RestartPolicy, AgentSettings, RunnerSettings)},
    **{module.__name__.rpartition(".")[2]: vars(module) for module in (sglang, router, generation)},
}


def rows() -> Iterator[list[str]]:
    for line in PAGE.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("|") and cells[0] != "fault" and not cells[0].startswith("---"):
            yield cells


ROWS = list(rows())


def test_every_fault_has_an_end_and_a_test() -> None:
    assert len(ROWS) > 40
    assert [row for row in ROWS if len(row) != 4 or not row[1] or not re.fullmatch(r"`tests/\S+`", row[3])] == []


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0][:60])
def test_its_test_is_there(row: list[str]) -> None:
    path, _, name = row[3].strip("`").partition("::")
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    assert name in {
        node.name for node in ast.parse((ROOT / path).read_text(encoding="utf-8")).body if isinstance(node, functions)
    }


def test_every_limit_is_one_of_the_code_or_the_config() -> None:
    named = {name for row in ROWS for name in re.findall(r"`(\w+)\.(\w+)`", row[2])}
    assert len(named) > 8
    assert [name for name in named if not isinstance(LIMITS[name[0]].get(name[1]), (int, float))] == []

"""The run that docs/harnesses.md shows: Claude Code on the scripted engine, with every other part real, in a fresh folder."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from producers.runner.harnesses import HarnessError, HarnessSettings, find_harness
from tests.e2e.small_run import ROOT, Gyre

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def test_the_commands_of_the_page_draw_the_tree_of_the_page(tmp_path: Path) -> None:
    """Two agents, a context each: three turns of the agent itself, two of the helper that it asked."""
    try:
        find_harness(HarnessSettings(name="claude-code"))
    except HarnessError as missing:
        pytest.skip(str(missing))
    program, model, experiment = Gyre(tmp_path), ROOT / "examples/quickstart/model", ROOT / "examples/harnesses/claude-code.toml"
    printed = program("eval", str(model), "--config", str(experiment), "--split", "test", limit=540)
    assert "1 finished, 0 discarded" in printed and re.search(r"on test: 1\.0000", printed)
    tree = program("trees", "latest")
    branches = re.findall(r"^. ?── ([\w-]+)  \w{8}\.\.\w{8}  (\d+) calls at 0", tree, re.MULTILINE)
    assert branches == [("main", "3"), ("sub-agent", "2")]
    assert "delivered 1.00" in tree and tree.count("would be selected, draw") == 2
    calls = re.findall(r"^.\s+\w{8}  at [\d,]+: \+", program("trees", "latest", "--calls"), re.MULTILINE)
    assert len(calls) == 5
    (end,) = [event for event in program.tail("executions") if event["type"] == "finished"]
    assert (end["ending"], end["did_work"]) == ("completed", True)

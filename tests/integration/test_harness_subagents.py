"""Sub-agents of real clients: another system text, a context of its own, and the same execution."""

from __future__ import annotations

from pathlib import Path

import pytest

from gyre_engine.events.calls import Role
from gyre_engine.events.executions import Ending, Finished
from gyre_engine.sampling.script_file import Answer
from producers.runner.harnesses import HarnessError, HarnessSettings, find_harness
from tests.integration.harness_bench import bench, scripted, tool_call
from tests.integration.test_harness_conversations import CLAUDE, QWEN, Words, forks

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
TOOL = {"claude-code": "Agent", "qwen-code": "agent"}


@pytest.mark.parametrize("words", [CLAUDE, QWEN], ids=lambda words: words.harness)
async def test_a_sub_agent_has_a_context_of_its_own(words: Words, tmp_path: Path) -> None:
    try:
        find_harness(HarnessSettings(name=words.harness))
    except HarnessError as missing:
        pytest.skip(str(missing))
    asks = tool_call(TOOL[words.harness], description="look", prompt="HELPER: what is in here?", subagent_type="general-purpose")
    async with bench(tmp_path) as on:
        on.cell("a", 0, scripted(
            Answer(contains=("HELPER",), lacks=("I ask.",), last=("seed.txt",), text="There is a seed."),
            Answer(contains=("HELPER",), lacks=("I ask.",), text="I look.\n" + words.run("ls")),
            Answer(contains=("I write.",), text="Done."),
            Answer(contains=("I ask.",), text="I write.\n" + words.run("printf 42 > answer.txt")),
            Answer(text="I ask.\n" + asks),
        ))  # fmt: skip
        ran = await on.run(words.harness, "Write 42 to answer.txt.")
    assert isinstance(ran.end, Finished) and ran.end.ending is Ending.COMPLETED
    assert (ran.files / "answer.txt").read_text() == "42"
    assert ran.roles() == [Role.MAIN, Role.SUB_AGENT, Role.SUB_AGENT, Role.MAIN, Role.MAIN]
    assert forks(ran.of(Role.MAIN)) == [] and forks(ran.of(Role.SUB_AGENT)) == []
    assert ran.of(Role.SUB_AGENT)[0].parent is None
    assert ran.tree.delivered == 1.0 and all(call.untrainable is None for call in ran.calls)

"""Real clients in real conversations: every sampled token stands in the tree, and the tree forks only where a client rewrote history.

What the clients send back is known to differ from what they got (docs/harnesses.md): arguments re-serialised, blanks dropped, a
leading `cd` removed, invalid JSON wrapped or repaired, reasoning trimmed. None of it may show in the tree.
"""

from __future__ import annotations

import asyncio
import itertools
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from gyre_engine.events.calls import Continuity, ModelCall, Role
from gyre_engine.events.executions import Ending, Finished
from gyre_engine.sampling.script_file import Answer
from gyre_engine.sampling.scripted import Gate
from producers.proxy.role_rules import RoleRule
from producers.runner.harnesses import HarnessError, HarnessSettings, find_harness
from tests.integration.harness_bench import Bench, Ran, bench, raw_call, scripted, tool_call

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]


@dataclass(frozen=True, slots=True)
class Words:
    """How one client's tools are called by the model."""

    harness: str
    shell: str
    command: str
    more: tuple[tuple[str, object], ...] = ()

    def run(self, command: str) -> str:
        return tool_call(self.shell, **{self.command: command}, **dict(self.more))


CLAUDE = Words("claude-code", "Bash", "command", (("description", "look"),))
CODEX = Words("codex", "exec_command", "cmd")
QWEN = Words("qwen-code", "run_shell_command", "command", (("is_background", False),))
CLIENTS = [CLAUDE, CODEX, QWEN]


@pytest.fixture(params=CLIENTS, ids=lambda words: words.harness)
def words(request: pytest.FixtureRequest) -> Words:
    found: Words = request.param
    try:
        find_harness(HarnessSettings(name=found.harness))
    except HarnessError as missing:
        pytest.skip(str(missing))
    return found


@pytest.fixture
async def on(tmp_path: Path) -> AsyncIterator[Bench]:
    async with bench(tmp_path) as made:
        yield made


def think(text: str) -> str:
    return f"<think>\n{text}\n</think>\n\n"


def completed(ran: Ran) -> None:
    """It ended by itself, and nothing that was sampled is missing."""
    assert isinstance(ran.end, Finished), ran.end
    assert (ran.end.ending, ran.end.exit_code) == (Ending.COMPLETED, 0), ran.end
    whole(ran)


def whole(ran: Ran) -> None:
    assert ran.tree.delivered == 1.0
    assert ran.tree.sampled_tokens == ran.tree.tree_tokens == sum(len(call.output_ids) for call in ran.calls)
    assert all(call.untrainable is None for call in ran.calls)


def forks(calls: list[ModelCall]) -> list[int]:
    """Which of these calls do not go on from the very end of the one before."""
    pairs = enumerate(itertools.pairwise(calls), 1)
    return [at for at, (one, other) in pairs if other.parent != one.call or other.prefix_len != end(one)]


def end(call: ModelCall) -> int:
    return call.prefix_len + len(call.new_input_ids) + len(call.output_ids)


def one_line(ran: Ran, turns: int) -> None:
    """The agent's calls are one path of that many turns, and there is nothing else."""
    assert ran.roles() == [Role.MAIN] * turns
    assert forks(ran.calls) == []
    assert [call.continuity for call in ran.calls] == [Continuity.ROOT] + [Continuity.BRIDGED] * (turns - 1)


async def test_it_writes_a_file_looks_at_it_and_ends(on: Bench, words: Words) -> None:
    """The arguments hold what clients rewrite: a leading cd, trailing blanks, keys in another order, escapes, big numbers."""
    odd = raw_call(words.shell, f'{{"{words.command}": "cd /app \\u0026\\u0026 printf 42 > answer.txt  ", "timeout": 60000.0}}')
    on.cell("a", 0, scripted(
        Answer(last=("seed",), text=think("  It is there.  ") + "Done: 42."),
        Answer(contains=("I write it.",), text=think("Now look.\n\n") + "I look.\n" + words.run("ls; cat answer.txt")),
        Answer(text=think("\n  First I write.  \n") + "I write it.  \n" + odd),
    ))  # fmt: skip
    ran = await on.run(words.harness, "Write 42 to answer.txt.")
    completed(ran)
    one_line(ran, 3)
    assert (ran.files / "answer.txt").read_text() == "42"


async def test_parallel_calls_are_one_turn(on: Bench, words: Words) -> None:
    both = (
        words.run("printf 4 > one.txt; echo first-$((40 + 1))") + "\n" + words.run("printf 2 > two.txt; echo second-$((40 + 2))")
    )
    on.cell("a", 0, scripted(
        Answer(last=("first-41", "second-42"), text="Both."), Answer(text="Two at once.\n" + both),
    ))  # fmt: skip
    ran = await on.run(words.harness, "Write one.txt and two.txt.")
    completed(ran)
    one_line(ran, 2)
    assert ((ran.files / "one.txt").read_text(), (ran.files / "two.txt").read_text()) == ("4", "2")


async def test_invalid_arguments_are_told_to_the_model_and_do_not_fork(on: Bench, words: Words) -> None:
    """The client tells the model, in its own words; the model mends it."""
    broken = raw_call(words.shell, f'{{"{words.command}": "printf 1 > a.txt}}')
    on.cell("a", 0, scripted(
        Answer(last=("mended-42",), text="Mended."),
        Answer(contains=("Broken",), text="Again.\n" + words.run("printf 42 > answer.txt; echo mended-$((40 + 2))")),
        Answer(text="Broken.\n" + broken),
    ))  # fmt: skip
    ran = await on.run(words.harness, "Write 42 to answer.txt.")
    completed(ran)
    assert (ran.files / "answer.txt").read_text() == "42"
    asked_again = [Role.ABANDONED] if words is QWEN else []  # it asks the same once more with a larger max_tokens
    assert ran.roles() == [*asked_again, *[Role.MAIN] * 3]
    assert forks(ran.of(Role.MAIN)) == []


async def test_a_cell_leaves_in_the_middle_of_an_answer_and_nobody_notices(on: Bench, words: Words) -> None:
    """The answer goes on at another cell from the ids that are there; the client sees one slow call."""
    gate = Gate()
    answers = (
        Answer(last=("seed",), text="Done."),
        Answer(text="I look around carefully. " * 4 + "\n" + words.run("printf 42 > answer.txt; ls"), piece=8),
    )
    leaving, staying = scripted(*answers, gate=gate), scripted(*answers)
    on.cell("a", 1, leaving)

    async def switch() -> None:
        while not leaving.requests:
            await asyncio.sleep(0.02)
        await gate.release(24)
        while not (await leaving.stats()).generated_tokens >= 24:
            await asyncio.sleep(0.02)
        on.cell("b", 0, staying)
        on.leaves("a")
        await leaving.pause(abort=True)

    switching = asyncio.create_task(switch())
    ran = await on.run(words.harness, "Write 42 to answer.txt.")
    await switching
    completed(ran)
    one_line(ran, 2)
    assert [(span.start, span.cell) for span in ran.calls[0].weight_spans] == [(0, "a"), (24, "b")]
    assert list(staying.requests[0].input_ids) == [*leaving.requests[0].input_ids, *ran.calls[0].output_ids[:24]]
    assert (ran.files / "answer.txt").read_text() == "42"


SUMMARY = "<analysis>It counts.</analysis>\n<summary>NOTED: numbers were counted.</summary>"
ROOM = {"claude-code": 100_000, "codex": 45_000, "qwen-code": 70_000}
"""A context in which three long results make the client compact, with the tokenizer of the tests."""


SUMS_UP = (RoleRule(Role.MAIN_SUMMARY, user=re.compile("create a detailed summary")),)
"""Claude Code sums up in the agent's own context, with its tools: only its words tell it from a turn."""


async def test_compaction_begins_a_new_context_and_loses_no_token(tmp_path: Path, words: Words) -> None:
    """Qwen Code writes the first answer of the new context into a made-up one that stood before it: that turn is rewritten."""
    room = ROOM[words.harness]
    async with bench(tmp_path, context=room, roles=SUMS_UP) as on:
        on.cell("a", 0, scripted(
            Answer(lacks=("<tools>",), text=SUMMARY),
            Answer(last=("create a detailed summary",), text=SUMMARY),
            Answer(contains=("NOTED", "On again."), text="Done."),
            Answer(contains=("NOTED",), text="On again.\n" + words.run("printf 42 > answer.txt")),
            Answer(text="I count.\n" + words.run("seq 1 2500 | tr '\\n' ' '")),
        ))  # fmt: skip
        ran = await on.run(words.harness, "Count, then write 42 to answer.txt.", context=room)
    completed(ran)
    assert (ran.files / "answer.txt").read_text() == "42"
    summaries = [at for at, role in enumerate(ran.roles()) if role is Role.MAIN_SUMMARY]
    assert len(summaries) == 1
    before, after = ran.calls[: summaries[0]], ran.calls[summaries[0] + 1 :]
    assert len(before) >= 3 and len(after) == 2
    assert forks(before) == [] and forks(after) == ([1] if words is QWEN else [])
    assert {role for at, role in enumerate(ran.roles()) if at != summaries[0]} == {Role.MAIN}
    assert after[0].messages < before[-1].messages

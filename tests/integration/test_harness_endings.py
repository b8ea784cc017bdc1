"""How real clients end, and what the runner makes of it (docs/harnesses.md has what each says)."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from gyre_engine.events.calls import Finish, Role
from gyre_engine.events.executions import Discarded, DiscardReason, Ending, Finished
from gyre_engine.sampling.script_file import Answer
from gyre_engine.sampling.scripted import Gate
from gyre_engine.sandbox import Exit
from producers.runner.harnesses import HarnessError, HarnessSettings, Trouble, clients, find_harness
from tests.integration.harness_bench import Ran, bench, scripted, tool_call

NAMES = ("claude-code", "codex", "qwen-code")
LOOK = {
    "claude-code": tool_call("Bash", command="echo x >> log"),
    "codex": tool_call("exec_command", cmd="echo x >> log"),
    "qwen-code": tool_call("run_shell_command", command="echo x >> log", is_background=False),
}


def needs(name: str) -> None:
    try:
        find_harness(HarnessSettings(name=name))
    except HarnessError as missing:
        pytest.skip(str(missing))


@pytest.mark.parametrize("name", NAMES)
def test_a_client_that_is_not_installed_is_refused_with_the_remedy(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clients, "FOLDER", tmp_path)
    with pytest.raises(HarnessError, match=rf"the harness {name} is not installed .*: run `make install-harnesses`"):
        find_harness(HarnessSettings(name=name))


SAID = [
    ("claude-code", 0, '{"type":"result","subtype":"success","is_error":false,"result":"Done"}', Ending.COMPLETED),
    ("claude-code", 1, '{"type":"result","subtype":"error_max_turns","is_error":true}', Ending.TURN_BUDGET),
    ("claude-code", 1, '{"type":"result","subtype":"success","is_error":true,"result":"Prompt is too long"}', Ending.CONTEXT_LIMIT),
    ("claude-code", 1, '{"type":"result","is_error":true,"result":"API Error: 503 no cell"}', Trouble.ENDPOINT_LOST),
    ("claude-code", 1, '{"type":"result","is_error":true,"result":"API Error: 404 no such model"}', Trouble.CRASHED),
    ("claude-code", -9, "", Trouble.CRASHED),
    ("codex", 0, '{"type":"turn.started"}\n{"type":"turn.completed","usage":{}}', Ending.COMPLETED),
    ("codex", 1, '{"type":"turn.failed","error":{"message":"Codex ran out of room in its context window."}}', Ending.CONTEXT_LIMIT),
    ("codex", 1, '{"type":"turn.failed","error":{"message":"stream disconnected before completion: x"}}', Trouble.ENDPOINT_LOST),
    ("codex", 1, '{"type":"turn.failed","error":{"message":"unexpected status 404 Not Found"}}', Trouble.CRASHED),
    ("codex", 101, "thread 'main' panicked", Trouble.CRASHED),
    ("qwen-code", 0, "I am done. [API Error: 503 is what the log says]", Ending.COMPLETED),
    ("qwen-code", 53, "Reached max session turns", Ending.TURN_BUDGET),
    ("qwen-code", 1, "[API Error: terminated (cause: other side closed)]", Trouble.ENDPOINT_LOST),
    ("qwen-code", 1, "[API Error: 400 This model's maximum context length is 9 tokens.]", Ending.CONTEXT_LIMIT),
    ("qwen-code", 1, "[API Error: 404 the model 'x' does not exist here]", Trouble.CRASHED),
    ("qwen-code", 1, "TypeError: x is not a function", Trouble.CRASHED),
]  # fmt: skip


@pytest.mark.parametrize(("name", "code", "output", "ending"), SAID)
def test_what_a_client_says_is_read_into_an_ending(name: str, code: int, output: str, ending: Ending | Trouble) -> None:
    """As the clients were seen to end."""
    needs(name)
    exit = Exit(code, f"a line before\n{output}\n".encode(), False, True, 1.0)
    assert find_harness(HarnessSettings(name=name)).outcome(exit) == ending


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", ["claude-code", "qwen-code"])
async def test_the_turn_budget_ends_it_and_keeps_the_work(name: str, tmp_path: Path) -> None:
    needs(name)
    async with bench(tmp_path) as on:
        on.cell("a", 0, scripted(Answer(text=f"More.\n{LOOK[name]}")))
        ran = await on.run(name, "Go on and on.", max_turns=3)
    assert isinstance(ran.end, Finished)
    assert (ran.end.ending, ran.end.did_work, len(ran.calls)) == (Ending.TURN_BUDGET, True, 3)
    assert ran.tree.delivered == 1.0


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", NAMES)
async def test_a_full_context_ends_it_and_keeps_what_is_there(name: str, tmp_path: Path) -> None:
    """The client is not told of the limit, so it cannot make room in time; what it tries instead does not help here."""
    needs(name)
    async with bench(tmp_path, context=20_000) as on:
        on.cell("a", 0, scripted(Answer(text="Never heard.")))
        ran = await on.run(name, "Write 42 to answer.txt.")
    assert isinstance(ran.end, Finished)
    assert (ran.end.ending, ran.end.did_work) == (Ending.CONTEXT_LIMIT, False)


@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.parametrize(("name", "patience_s"), [("codex", 4.0), ("qwen-code", 4.0), ("claude-code", 60.0)])
async def test_a_silent_engine_is_waited_for_beyond_the_client_s_own_patience(
    name: str, patience_s: float, tmp_path: Path
) -> None:
    """Codex counts real events as life, Qwen Code the headers; Claude Code counts neither pings nor headers, so its limit is what
    the adapter sets. The first token comes SILENCE_S after the request."""
    needs(name)
    gate = Gate()
    async with bench(tmp_path, quiet_s=1.0) as on:
        engine = scripted(
            Answer(last=("seed.txt",), text="Done."), Answer(text=LOOK[name].replace("echo x", "ls; echo x")), gate=gate
        )
        on.cell("a", 0, engine)

        async def wake() -> int:
            while not engine.requests:
                await asyncio.sleep(0.02)
            await asyncio.sleep(SILENCE_S)  # the time that is tested
            status = on.seen[-1].status
            await gate.open()
            return status

        waking = asyncio.create_task(wake())
        ran = await on.run(name, "Look around.", call_limit_s=patience_s)
    assert await waking == 200
    assert isinstance(ran.end, Finished) and ran.end.ending is Ending.COMPLETED
    assert (ran.roles(), len([seen for seen in on.seen if seen.method == "POST"])) == ([Role.MAIN] * 2, 2)


SILENCE_S = 8.0


@pytest.mark.slow
@pytest.mark.timeout(100)
@pytest.mark.parametrize("name", NAMES)
async def test_a_connection_that_drops_before_the_first_token_costs_nothing(name: str, tmp_path: Path) -> None:
    """Every client asks again; nothing was sampled for the first request, so nothing of it is recorded."""
    needs(name)
    gate = Gate()
    async with bench(tmp_path) as on:
        engine = scripted(
            Answer(last=("seed.txt",), text="Done."), Answer(text=LOOK[name].replace("echo x", "ls; echo x")), gate=gate
        )
        on.cell("a", 0, engine)

        async def drop() -> None:
            while not engine.requests:
                await asyncio.sleep(0.02)
            on.drop()
            await gate.open()

        dropping = asyncio.create_task(drop())
        ran = await on.run(name, "Look around.")
        await dropping
    assert isinstance(ran.end, Finished) and ran.end.ending is Ending.COMPLETED
    assert (ran.roles(), ran.tree.delivered) == ([Role.MAIN] * 2, 1.0)


async def dropped(name: str, folder: Path) -> Ran:
    """The proxy's connections end in the middle of the first answer; afterwards it is there again."""
    needs(name)
    gate = Gate()
    async with bench(folder) as on:
        engine = scripted(
            Answer(last=("seed.txt",), text="Done."),
            Answer(text="I look around. " * 20 + LOOK[name].replace("echo x", "ls; echo x"), piece=10), gate=gate,
        )  # fmt: skip
        on.cell("a", 0, engine)

        async def drop() -> None:
            while not engine.requests:
                await asyncio.sleep(0.02)
            await gate.release(60)
            while len(on.seen[-1].answer) < 1000:
                await asyncio.sleep(0.02)
            on.drop()
            while not engine.aborted:
                await asyncio.sleep(0.02)
            await gate.open()

        dropping = asyncio.create_task(drop())
        ran = await on.run(name, "Look around.")
        await dropping
    assert ran.calls[0].finish is Finish.CANCELLED and len(ran.calls[0].output_ids) > 0
    assert ran.tree.delivered == 1.0
    return ran


@pytest.mark.slow
@pytest.mark.timeout(100)
@pytest.mark.parametrize("name", ["claude-code", "codex"])
async def test_an_answer_that_breaks_off_is_asked_for_again(name: str, tmp_path: Path) -> None:
    ran = await dropped(name, tmp_path)
    assert isinstance(ran.end, Finished) and ran.end.ending is Ending.COMPLETED
    assert ran.roles() == [Role.ABANDONED, Role.MAIN, Role.MAIN]


@pytest.mark.slow
@pytest.mark.timeout(100)
async def test_a_client_that_ends_because_the_proxy_went_away_is_tried_again(tmp_path: Path) -> None:
    """Qwen Code does not ask again for an answer that broke off: that end is the proxy's, not the agent's."""
    ran = await dropped("qwen-code", tmp_path)
    assert isinstance(ran.end, Discarded) and ran.end.reason is DiscardReason.LOST

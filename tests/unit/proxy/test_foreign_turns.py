"""Assistants' turns that were not sampled here (examples, another execution's): all that they say counts."""

from __future__ import annotations

import asyncio
from typing import Any

import orjson
import pytest

from gyre_engine.events.calls import Continuity
from gyre_engine.sampling.scripted import Gate, ScriptedEngine
from producers.proxy.dialects.chat import Chat
from tests.unit.proxy.conftest import BASH, MakeStack, Stack, tool, tool_call, until, user


def asked(id: str, arguments: str, name: str = "bash") -> dict[str, Any]:
    call = {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}
    return {"role": "assistant", "content": "", "tool_calls": [call]}


def example(turn: dict[str, Any]) -> list[dict[str, Any]]:
    results = [tool(call["id"], "ok") for call in turn.get("tool_calls", [])]
    return [user("an example and a task"), turn, *results]


LIST = asked("1", '{"cmd": "ls"}')
OTHERS = {
    "arguments": asked("1", '{"cmd": "rm"}'),
    "name": asked("1", '{"cmd": "ls"}', "delete"),
    "reasoning": {**LIST, "reasoning_content": "look first"},
    "thinking": {**LIST, "content": "<think>look first</think>"},
}


@pytest.mark.parametrize("what", OTHERS)
async def test_a_history_with_another_example_is_another_one(stack: Stack, what: str) -> None:
    stack.says(tool_call("bash", "{}"), "two")
    answer = await stack.say(example(LIST), tools=[BASH])
    result = tool(answer["tool_calls"][0]["id"], "done")
    await stack.say([*example(OTHERS[what]), answer, result], tools=[BASH])
    prompt = stack.rendering.tokenizer.decode(stack.sent()[1])
    shown = [said in prompt for said in ('"ls"', "delete", "look first")]
    assert shown == [what != "arguments", what == "name", what in ("reasoning", "thinking")]
    assert stack.calls()[1].continuity is not Continuity.BRIDGED


async def test_bodies_with_other_examples_are_two_calls(make_stack: MakeStack) -> None:
    stack, gate = make_stack(cells=False), Gate()
    stack.cell("a", engine=ScriptedEngine(lambda _: stack.scripts.pop(0), gate=gate))
    stack.says("one", "two")
    answers = [asyncio.ensure_future(stack.say(example(turn))) for turn in (LIST, OTHERS["arguments"])]
    await until(lambda: sum(stack.service.counts[what] for what in ("calls", "joined")) == 2)
    await gate.open()
    assert sorted([(await answer)["content"] for answer in answers]) == ["one", "two"]
    assert stack.service.counts["joined"] == 0


async def test_the_same_example_is_gone_on_from(stack: Stack) -> None:
    stack.says(tool_call("bash", "{}"), "two")
    history = example(OTHERS["reasoning"])
    answer = await stack.say(history, tools=[BASH])
    await stack.say([*history, answer, tool(answer["tool_calls"][0]["id"], "done")], tools=[BASH])
    first, second = stack.calls()
    assert second.continuity is Continuity.BRIDGED and second.parent == first.call


async def test_what_a_harness_rewrites_in_a_sampled_turn_behind_an_example_does_not_count(stack: Stack) -> None:
    asks = "<think>\nhm\n</think>\n\n" + tool_call("bash", '{"a": 1.10}')
    stack.says(asks, asks, "three")
    history = example(LIST)
    for _ in range(2):
        (call,) = (await stack.say(history, tools=[BASH]))["tool_calls"]
        history = [*history, asked(call["id"], '{"a":1.1}'), tool(call["id"], "done")]
    await stack.say(history, tools=[BASH])
    assert [call.parent for call in stack.calls()] == [None, *[call.call for call in stack.calls()[:2]]]
    assert [call.continuity for call in stack.calls()[1:]] == [Continuity.BRIDGED, Continuity.BRIDGED]


async def test_an_id_that_was_not_given_out_here_stands_for_nothing(stack: Stack) -> None:
    """The wire id of another execution's call: there its arguments do not count, here they do."""
    stack.says(tool_call("bash", '{"a": 1}'))
    (call,) = (await stack.say([user("q")], tools=[BASH]))["tool_calls"]
    bodies = [orjson.dumps({"model": "policy", "messages": example(asked(call["id"], said))}) for said in ("{}", '{"b": 2}')]
    here = stack.service.executions["g.0.0"].conversation
    assert len({Chat().parse(body).digest for body in bodies}) == 2
    assert len({Chat().parse(body, sampled=here).digest for body in bodies}) == 1

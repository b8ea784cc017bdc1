"""What Claude Code and others do to a history between two calls: the tree does not fork, and only what is new is read."""

from __future__ import annotations

import copy
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gyre_engine.events.calls import Continuity
from producers.proxy.dialects.messages import Messages
from producers.proxy.histories import History
from tests.unit.proxy.conftest import Stack, tool_call
from tests.unit.proxy.messages_client import BASH, BILLING, Agent, results

WRITTEN = '{"command": "cd /w && ls", "content": "a  \\n", "flag": "false", "n": 1.10, "id": 12345678901234567890, "7": 1}'
ANSWER = "<think>\nlook first\n</think>\n\nI look.\n" + tool_call("bash", WRITTEN)
CALL = tool_call("bash", WRITTEN)
"""Without thinking, which the template drops once a user speaks (C16)."""
BROKEN = "I look.\n" + tool_call("bash", '{"command": "ls}')


def rewritten_arguments(turn: dict[str, Any]) -> None:
    turn["content"][-1]["input"] = {"7": 1, "n": 1.1, "id": 12345678901234567000, "flag": False, "content": "a", "command": "ls"}


def thinking_without_a_signature(turn: dict[str, Any]) -> None:
    turn["content"][0]["signature"] = ""


def thinking_dropped(turn: dict[str, Any]) -> None:
    del turn["content"][0]


def thinking_trimmed(turn: dict[str, Any]) -> None:
    turn["content"][0]["thinking"] = "look"


def thinking_redacted(turn: dict[str, Any]) -> None:
    turn["content"][0] = {"type": "redacted_thinking", "data": "xyz"}


def blanks_around_the_text(turn: dict[str, Any]) -> None:
    turn["content"][1]["text"] += "\n\n"


def a_blank_block_more(turn: dict[str, Any]) -> None:
    turn["content"].insert(2, {"type": "text", "text": "\n"})


def cache_marks(turn: dict[str, Any]) -> None:
    for block in turn["content"]:
        block["cache_control"] = {"type": "ephemeral"}


CHANGES = [
    rewritten_arguments,
    thinking_without_a_signature,
    thinking_dropped,
    thinking_trimmed,
    thinking_redacted,
    blanks_around_the_text,
    a_blank_block_more,
    cache_marks,
]


@pytest.mark.parametrize("change", CHANGES)
async def test_a_rewritten_turn_goes_on_from_what_was_sampled(stack: Stack, change: Any) -> None:
    stack.says(ANSWER, "done")
    agent = Agent(stack)
    answer = await agent.turn()
    change(agent.history[-1])
    agent.history.append(results(answer, "out"))
    await agent.turn()
    extends(stack)


def extends(stack: Stack, turns: int = 2) -> None:
    """Each call goes on from the one before, from its sampled ids on."""
    calls, sent = stack.calls(), stack.sent()
    assert len(calls) == turns and stack.prompts() == sent
    for before, after, first, second in zip(calls, calls[1:], sent, sent[1:], strict=False):
        assert after.parent == before.call and after.continuity is Continuity.BRIDGED
        assert second[: len(first) + len(before.output_ids)] == [*first, *before.output_ids]


async def test_broken_arguments_come_as_an_object_and_go_back_as_they_were_sampled(stack: Stack) -> None:
    stack.says(BROKEN, "done")
    agent = Agent(stack)
    answer = await agent.turn()
    assert answer.content[-1].input == {"__unparsedToolInput": {"raw": '{"command": "ls}'}}
    agent.history.append(results(answer, "The input is not valid JSON"))
    await agent.turn()
    extends(stack)


@pytest.mark.parametrize("written", ['"ls"', "[1]", "3", "null", "", "{", '{"a": NaN}', '{"a": 1} x', "{" * 3000, '{"a": "\n"}'])
async def test_input_is_an_object_whatever_the_model_writes(stack: Stack, written: str) -> None:
    stack.says(*[tool_call("bash", written)] * 2)
    whole = await Agent(stack).turn()
    events = [event async for event in await Agent(stack).turn_streamed()]
    [partial] = [event.delta.partial_json for event in events if event.type == "content_block_delta"]
    for found in (whole.content[0].input, orjson.loads(partial)):
        assert isinstance(found, dict) and list(found) == ["__unparsedToolInput"]


async def test_a_wrapped_input_of_an_unknown_call_means_the_text_in_it(stack: Stack) -> None:
    stack.says("ok")
    wrapped = {"__unparsedToolInput": {"raw": '{"command": "ls}'}}
    agent = Agent(stack)
    agent.history += [
        {"role": "assistant", "content": [{"type": "tool_use", "id": "toolu_1", "name": "bash", "input": wrapped}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_1", "content": "no"}]},
    ]
    await agent.turn()
    assert '{"name": "bash", "arguments": {"command": "ls}}' in stack.rendering.tokenizer.decode(stack.sent()[0])


async def test_after_a_rewritten_beginning_the_sampled_arguments_are_put_back(stack: Stack) -> None:
    stack.says(ANSWER, "done")
    agent = Agent(stack)
    answer = await agent.turn()
    rewritten_arguments(agent.history[-1])
    agent.history[0] = {"role": "user", "content": "a summary of what came before"}
    agent.history.append(results(answer, "out"))
    await agent.turn()
    assert WRITTEN in stack.rendering.tokenizer.decode(stack.sent()[1]) and stack.prompts() == stack.sent()


async def test_a_billing_line_and_moving_cache_marks_neither_fork_nor_are_read_again(stack: Stack) -> None:
    """C06: as Claude Code sends it, with the marks of a cache that move."""
    stack.says(ANSWER, ANSWER, "done")
    agent, mark = Agent(stack), {"cache_control": {"type": "ephemeral"}}
    for turn in range(3):
        system = [{"type": "text", "text": BILLING.format(turn)}, {"type": "text", "text": "You help.", **mark}]
        marked = copy.deepcopy(agent.history)
        if isinstance(marked[-1]["content"], str):
            marked[-1]["content"] = [{"type": "text", "text": marked[-1]["content"]}]
        marked[-1]["content"][-1] |= mark
        kept, agent.history = agent.history, marked
        before = stack.service.histories.last("g.0.0")
        answer = await agent.turn(system=system, tools=[{**BASH, **mark}] if turn == 1 else [BASH])
        known = stack.service.histories.last("g.0.0")
        agent.history = [*kept, agent.history[-1]]
        if turn < 2:
            agent.history.append(results(answer, "out"))
        if before is not None:
            assert_read_on(known, before)
    extends(stack, 3)
    assert [call.parent is None for call in stack.calls()] == [True, False, False]
    assert "billing" not in stack.rendering.tokenizer.decode(stack.sent()[0])


def assert_read_on(known: History | None, before: History) -> None:
    """Everything that the history before said is the very same object."""
    assert known is not None and known.head is before.head and len(known.messages) > len(before.messages)
    assert all(one is other for one, other in zip(known.messages, before.messages, strict=False))


async def test_a_system_text_is_the_same_as_text_as_blocks_and_inside_messages(stack: Stack) -> None:
    stack.says("a", "b", "c", "d")
    await Agent(stack).turn(system="You help.")
    await Agent(stack).turn(system=[{"type": "text", "text": BILLING.format(1)}, {"type": "text", "text": "You help."}])
    await Agent(stack).turn(system=BILLING.format(1) + "\nYou help.")
    inside = Agent(stack)
    inside.history.insert(0, {"role": "system", "content": "You help."})
    await inside.turn()
    one, *others = stack.sent()
    assert others == [one] * 3


async def test_a_reminder_inside_the_messages_stands_where_it_was_said(stack: Stack) -> None:
    stack.says(ANSWER, "done")
    agent = Agent(stack)
    answer = await agent.turn()
    agent.history += [results(answer, "out"), {"role": "system", "content": [{"type": "text", "text": "Mind the todo list."}]}]
    await agent.turn()
    extends(stack)
    new = stack.rendering.tokenizer.decode(stack.calls()[1].new_input_ids.tolist())
    assert new.index("out") < new.index("<|im_start|>system\nMind the todo list.<|im_end|>")


async def test_an_empty_answer_that_is_dropped_is_left_in_the_tree(stack: Stack) -> None:
    stack.says(CALL, "", "done")
    agent = Agent(stack)
    agent.history.append(results(await agent.turn(), "out"))
    await agent.turn()
    agent.history.pop()
    agent.history[-1]["content"].append({"type": "text", "text": "Please go on."})
    await agent.turn()
    first, empty, third = stack.calls()
    sent = stack.sent()
    assert empty.parent == first.call and stack.prompts() == sent and third.continuity is Continuity.BRIDGED
    assert sent[2][: len(sent[0]) + len(first.output_ids)] == [*sent[0], *first.output_ids]


async def test_an_empty_answer_that_is_sent_back_is_known(stack: Stack) -> None:
    stack.says("", "done")
    agent = Agent(stack)
    await agent.turn()
    assert agent.history[-1]["content"] == []
    agent.history.append({"role": "user", "content": "Please go on."})
    await agent.turn()
    extends(stack)


async def test_a_turn_over_two_items_is_one_turn(stack: Stack) -> None:
    stack.says(ANSWER, "done")
    agent = Agent(stack)
    answer = await agent.turn()
    blocks = agent.history.pop()["content"]
    agent.history += [{"role": "assistant", "content": blocks[:2]}, {"role": "assistant", "content": blocks[2:]}]
    agent.history.append(results(answer, "out"))
    await agent.turn()
    extends(stack)


async def test_results_come_before_the_text_beside_them(stack: Stack) -> None:
    stack.says(ANSWER, "done")
    agent = Agent(stack)
    turn = results(await agent.turn(), "out")
    turn["content"][0] |= {"content": [{"type": "text", "text": "out"}, {"type": "text", "text": "put"}], "is_error": True}
    turn["content"].insert(0, {"type": "text", "text": "<system-reminder>x</system-reminder>"})
    agent.history.append(turn)
    await agent.turn()
    new = stack.rendering.tokenizer.decode(stack.calls()[1].new_input_ids.tolist())
    assert "<tool_response>\noutput\n</tool_response>" in new and new.index("output") < new.index("reminder")


async def test_a_side_call_and_a_compaction_are_roots_of_their_own(stack: Stack) -> None:
    stack.says(CALL, "a title", "a summary", "new work", "done")
    agent = Agent(stack, {"tools": [BASH], "system": "You help."})
    answer = await agent.turn()
    title = Agent(stack, {"system": "Write a title."}, [{"role": "user", "content": "go"}])
    await title.turn()
    agent.history.append(results(answer, "out"))
    summary = Agent(stack, agent.fields, [*agent.history, {"role": "user", "content": "Summarise."}])
    text = (await summary.turn()).content[0].text
    after = Agent(stack, agent.fields, [{"role": "user", "content": f"Before: {text}"}])
    await after.turn()
    first, side, third, fourth = stack.calls()
    assert side.parent is None and third.parent == first.call and third.continuity is Continuity.BRIDGED
    assert fourth.prefix_len < first.prompt_tokens and stack.prompts() == stack.sent()


def text(value: str, marked: bool = False) -> dict[str, Any]:
    return {"type": "text", "text": value} | ({"cache_control": {"type": "ephemeral"}} if marked else {})


def result(id: str, value: str) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": id, "content": [text(value)]}


def use(id: str) -> dict[str, Any]:
    return {"type": "tool_use", "id": id, "name": "bash", "input": {"id": id}}


ITEMS: list[dict[str, Any]] = [
    {"role": "user", "content": "one"},
    {"role": "user", "content": [text("one")]},
    {"role": "user", "content": [text("o"), text("ne")]},
    {"role": "user", "content": [result("a", "x"), result("b", "y"), text("z")]},
    {"role": "user", "content": [result("a", "x")]},
    {"role": "user", "content": []},
    {"role": "assistant", "content": "two"},
    {"role": "assistant", "content": [{"type": "thinking", "thinking": "hm", "signature": ""}, text("two"), use("a"), use("b")]},
    {"role": "assistant", "content": [use("c")]},
    {"role": "system", "content": "three"},
]
items = st.lists(st.sampled_from(ITEMS), min_size=1, max_size=6)


@settings(deadline=None)
@given(
    common=items, before=items, after=items, marks=st.sets(st.integers(0, 12)), cch=st.integers(0, 1), other_tools=st.booleans()
)
def test_a_history_read_with_the_last_one_is_as_read_alone(
    common: list[Any], before: list[Any], after: list[Any], marks: set[int], cch: int, other_tools: bool
) -> None:
    last = Messages().parse(body([*common, *before], set(), 0, False)).history
    new = body([*common, *after], marks, cch, other_tools)
    alone, on = Messages().parse(new), Messages().parse(new, last)
    assert (alone.chains, alone.messages, alone.tools, alone.digest) == (on.chains, on.messages, on.tools, on.digest)
    assert on.history.raw == alone.history.raw and on.history.ends == alone.history.ends


def body(history: list[Any], marks: set[int], cch: int, other_tools: bool) -> bytes:
    history = copy.deepcopy(history)
    for at in marks & set(range(len(history))):
        content = history[at]["content"]
        content = [text(content)] if isinstance(content, str) else content
        history[at]["content"] = [{**block, "cache_control": {"type": "ephemeral"}} for block in content]
    tools = [BASH, {"type": "web_search_20250305", "name": "web_search"}] if other_tools else [BASH]
    system = [text(BILLING.format(cch)), text("You help.")]
    return orjson.dumps({"model": "policy", "messages": history, "system": system, "tools": tools})

"""Whatever a harness does to its history: what is recorded is what the engine was sent, and nothing that was sampled is lost."""

from __future__ import annotations

import asyncio
import copy
from typing import Any

import orjson
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gyre_engine.events.calls import Continuity, ExecutionClosed, ModelCall
from gyre_engine.sampling.scripted import Script
from gyre_engine.trees import facts
from gyre_engine.trees.tree import TrajectoryTree
from producers.proxy.dialects.chat import Chat
from producers.proxy.histories import Head, Histories, History
from producers.proxy.rendering import Rendering
from tests.unit.proxy.conftest import BASH, MakeStack, Stack, tool, tool_call, user

OUTPUTS = (
    "yes",
    "hello",
    "<think>\nhm\n</think>\n\nyes",
    tool_call("bash", '{"a":  1}'),
    "text\n" + tool_call("bash", '{"a": 1}') + "\n" + tool_call("bash", '{"b": [1.10]}'),
    "<think>\nhm\n</think>\n\n" + tool_call("bash", "{}"),
    "<tool_call>\n{broken",
    "",
    "  padded  ",
)
CHANGES = (
    "continue",
    "continue",
    "continue",
    "again",
    "edit",
    "drop",
    "rewrite-arguments",
    "summary",
    "strip-reasoning",
    "other-tools",
    "fork",
)

step = st.tuples(st.sampled_from(CHANGES), st.integers(0, 10_000), st.sampled_from(OUTPUTS), st.booleans(), st.booleans())


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=st.lists(step, min_size=1, max_size=12))
def test_the_record_is_what_was_sent(make_stack: MakeStack, steps: list[Any]) -> None:
    asyncio.run(play(make_stack(), steps))


async def play(stack: Stack, steps: list[Any]) -> None:
    histories: list[list[dict[str, Any]]] = [[{"role": "system", "content": "be good"}, user("begin")]]
    for change, seed, output, split, cut in steps:
        history = changed(histories, change, seed)
        stack.scripts.append(script(stack.rendering, output, split, cut))
        tools = [BASH, {**BASH, "function": {**BASH["function"], "name": "other"}}] if change == "other-tools" else [BASH]
        message = await stack.say(history, tools=tools)
        histories.append([*history, message, *follow_up(message, seed)])
    check(stack)


def script(rendering: Rendering, text: str, split: bool, cut: bool) -> Script:
    """A text as ids: as the tokenizer splits it or byte by byte, ended by the stop token or cut short."""
    ids = rendering.tokenizer.encode(text)
    if split:
        ids = (
            [
                token
                for id in ids
                for token in rendering.tokenizer.encode(chr(rendering.tokenizer.bytes_of(id)[0]))
                if len(rendering.tokenizer.bytes_of(id)) == 1
            ]
            if text.isascii() and "<" not in text and "hello" not in text
            else ids
        )
        if text == "hello":
            ids = [token for letter in text for token in rendering.tokenizer.encode(letter)]
    return Script((*ids[: len(ids) // 2], 65) if cut and len(ids) > 1 else (*ids, rendering.stop_ids[0]))


def follow_up(message: dict[str, Any], seed: int) -> list[dict[str, Any]]:
    calls = message.get("tool_calls")
    return [tool(call["id"], f"result {seed}") for call in calls] if calls else [user(f"and {seed % 3}")]


def changed(histories: list[list[dict[str, Any]]], change: str, seed: int) -> list[dict[str, Any]]:
    history = copy.deepcopy(histories[-1])
    at = seed % len(history)
    match change:
        case "again":
            return copy.deepcopy(histories[seed % len(histories)])
        case "edit":
            history[at]["content"] = f"edited {seed % 2}"
        case "drop" if history[at]["role"] == "assistant":
            return history[:at] + [message for message in history[at + 1 :] if message["role"] != "tool"]
        case "rewrite-arguments":
            for message in history:
                for call in message.get("tool_calls", []):
                    call["function"]["arguments"] = '{"a":1}'
        case "summary":
            return [history[0], user(f"summary {seed % 2}")]
        case "strip-reasoning":
            for message in history:
                message.pop("reasoning_content", None)
        case "fork":
            return history[: at + 1] if history[at]["role"] in ("user", "tool") else history
    return history


def check(stack: Stack) -> None:
    calls = stack.calls()
    assert stack.prompts() == stack.sent()
    assert [call.number for call in calls] == list(range(len(calls)))
    tree = TrajectoryTree("g.0.0")
    for call in calls:
        assert (call.parent is None) == (call.prefix_len == 0) == (call.continuity is Continuity.ROOT)
        tree.add(facts.of_call(call))
    closed = tree.close(ExecutionClosed(execution="g.0.0", owner_epoch=1, calls=len(calls), last_call=calls[-1].call))
    assert closed is not None and closed.delivered == 1.0
    assert closed.tree_tokens == sum(len(call.output_ids) for call in calls)
    assert all(bridged(call, calls) for call in calls if call.continuity is Continuity.BRIDGED)


def bridged(call: ModelCall, calls: list[ModelCall]) -> bool:
    """Some earlier call's whole path stands at the head of this prompt."""
    return any(end <= call.prefix_len for end in (c.prompt_tokens + len(c.output_ids) for c in calls if c.number < call.number))


async def test_a_new_system_text_is_a_new_root(stack: Stack) -> None:
    stack.says("a", "b", "c")
    await stack.say([{"role": "system", "content": "You are one"}, user("q")])
    await stack.say([{"role": "system", "content": "You are another"}, user("q")])
    await stack.say([{"role": "system", "content": "You are one"}, user("summary")])
    roots = [call.parent is None for call in stack.calls()]
    assert roots == [True, True, False]


async def test_c06_a_nonce_in_the_system_text_changes_no_parent(stack: Stack) -> None:
    """C06: two turns that differ only in the nonce at the head of the system text, and in the new turn."""
    stack.says("a", "b")

    def system(nonce: int) -> dict[str, Any]:
        return {"role": "system", "content": f"x-anthropic-billing-header: cc_version=2; cch={nonce};\nYou help."}

    message = await stack.say([system(11111), user("q")], tools=[BASH])
    await stack.say([system(22222), user("q"), message, user("more")], tools=[BASH])
    first, second = stack.calls()
    assert second.parent == first.call and first.shape == second.shape
    one, other = stack.sent()
    assert other[: len(one) + len(first.output_ids)] == [*one, *first.output_ids]
    check(stack)
    assert sum(call.parent is None for call in stack.calls()) == 1


def test_the_line_that_changes_is_taken_off_a_system_text_alone() -> None:
    billed = "x-anthropic-billing-header: cch=1;\nYou help."
    said = [{"role": role, "content": billed} for role in ("system", "user", "developer", "user")]
    read = Chat().parse(orjson.dumps({"model": "policy", "messages": said})).messages
    assert [message.text for message in read] == ["You help.", billed, "You help.", billed]


@settings(deadline=None)
@given(first=st.integers(0, 8), second=st.integers(0, 8), edit=st.integers(0, 8), other_tools=st.booleans())
def test_a_history_read_with_the_last_one_is_as_read_alone(first: int, second: int, edit: int, other_tools: bool) -> None:
    def body(count: int, tools: list[Any], marked: int | None) -> bytes:
        messages = [user("x" if at == marked else f"m{at}") for at in range(count + 1)]
        return orjson.dumps({"model": "policy", "messages": messages, "tools": tools})

    last = Chat().parse(body(first, [BASH], None)).history
    new = body(second, [] if other_tools else [BASH], edit)
    alone, after = Chat().parse(new), Chat().parse(new, last)
    assert (alone.chains, alone.messages, alone.tools, alone.digest) == (after.chains, after.messages, after.tools, after.digest)
    assert after.history.raw == alone.history.raw


def test_histories_are_bounded_and_a_side_call_does_not_displace_a_long_one() -> None:
    def history(nbytes: int) -> History:
        return History(Head(None, []), [], [], [], [], nbytes)

    histories, long = Histories(budget=100), history(60)
    histories.keep("a", long)
    histories.keep("a", history(10))
    assert histories.last("a") is long
    histories.keep("b", history(50))
    assert histories.last("a") is None and histories.last("b") is not None

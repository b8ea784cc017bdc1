"""What clients of the Responses dialect do to their histories: turns stay one, and what was sampled stays in its context."""

from __future__ import annotations

import asyncio
import copy
import random
from collections.abc import Callable
from typing import Any

import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gyre_engine.events.calls import Continuity
from gyre_engine.trees.conversation import Author, Message, ToolCall, wire_id
from producers.proxy.dialects.responses import Responses
from tests.unit.proxy import messages_client
from tests.unit.proxy.conftest import MakeStack, Stack, tool_call, user
from tests.unit.proxy.test_proxy_histories import OUTPUTS, check, script
from tests.unit.proxy.test_responses_answers import MAIL, PATCH, RUN, ask

Items = list[dict[str, Any]]


def read(items: Any, **fields: Any) -> list[Message]:
    return list(Responses().parse(orjson.dumps({"model": "policy", "input": items, **fields})).messages)


def output(call: dict[str, Any], text: str = "ok") -> dict[str, Any]:
    kind = {"function_call": "function_call_output", "custom_tool_call": "custom_tool_call_output"}[call["type"]]
    return {"type": kind, "call_id": call["call_id"], "output": text}


def assistant(text: str) -> dict[str, Any]:
    return {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}]}


def thought(text: str) -> dict[str, Any]:
    return {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": text}], "content": None}


def call(id: str, name: str = "run") -> dict[str, Any]:
    return {"type": "function_call", "call_id": id, "name": name, "arguments": "{}"}


def test_a_turn_that_spans_items_is_one_message() -> None:
    items = [
        user("q"),
        thought("hm"),
        assistant("on it"),
        call("a"),
        call("b"),
        output(call("b")),
        output(call("a")),
        user("go on"),
    ]
    asked = (ToolCall("a", "run", "{}"), ToolCall("b", "run", "{}"))
    assert read(items) == [
        Message(Author.USER, "q"),
        Message(Author.ASSISTANT, "on it", "hm", asked),
        Message(Author.TOOL, "ok", answers="b"),
        Message(Author.TOOL, "ok", answers="a"),
        Message(Author.USER, "go on"),
    ]
    history = Responses().parse(orjson.dumps({"model": "policy", "input": items, "instructions": "i"})).history
    assert history.ends == [0, 1, 5, 6, 7, 8]


def test_what_a_lost_connection_left_is_a_turn_of_its_own() -> None:
    one, two = wire_id("0" * 32, 0), wire_id("1" * 32, 0)
    lost = [thought("hm"), assistant("on"), thought("hm hm"), assistant("on it"), call(two)]
    assert [(m.text, m.reasoning, len(m.calls)) for m in read([user("q"), *lost])[1:]] == [("on", "hm", 0), ("on it", "hm hm", 1)]
    assert [len(m.calls) for m in read([user("q"), call(one), call(two), output(call(one)), output(call(two))])] == [
        0,
        1,
        1,
        0,
        0,
    ]


async def test_what_a_lost_connection_left_is_told_by_its_ids(stack: Stack) -> None:
    stack.says("on it", tool_call("run", "{}"), "done")
    history: Items = [user("q"), *(await ask(stack, [user("q")], tools=[RUN])).to_dict()["output"]]
    made = (await ask(stack, history, tools=[RUN])).to_dict()["output"]
    await ask(stack, [*history, *made, output(made[0])], tools=[RUN])
    assert [record.continuity for record in stack.calls()][2] is Continuity.BRIDGED
    assert stack.calls()[2].parent == stack.calls()[1].call
    check(stack)


@pytest.mark.parametrize(
    "item",
    [
        {"role": "assistant", "content": ""},
        {"role": "assistant", "content": []},
        {"type": "message", "role": "assistant", "content": None},
        {"type": "message", "role": "assistant"},
        {"type": "reasoning", "summary": [], "content": None, "encrypted_content": "gAAA"},
    ],
)
def test_what_says_nothing_neither_breaks_a_turn_nor_makes_two(item: dict[str, Any]) -> None:
    assert read([user("q"), assistant("a"), item, call("x")])[1:] == [
        Message(Author.ASSISTANT, "a", "", (ToolCall("x", "run", "{}"),))
    ]
    assert read([user("q"), item]) == [Message(Author.USER, "q"), Message(Author.ASSISTANT)]


def test_instructions_stand_before_the_items_and_only_in_their_request() -> None:
    last = Responses().parse(orjson.dumps({"model": "policy", "input": "q", "instructions": "one"})).history
    body = orjson.dumps({"model": "policy", "input": [user("q"), assistant("a"), user("b")], "instructions": "two"})
    assert [m.text for m in Responses().parse(body, last).messages] == ["two", "q", "a", "b"]


def test_calls_of_every_kind_and_their_outputs_are_read() -> None:
    items = [
        {"type": "custom_tool_call", "call_id": "1", "name": "write", "namespace": "mail", "input": 'a"b'},
        {
            "type": "custom_tool_call_output",
            "call_id": "1",
            "output": [{"type": "input_text", "text": "x"}, {"type": "input_text", "text": "y"}],
        },
        {"type": "tool_search_call", "call_id": "2", "execution": "client", "arguments": {"query": "mail", "limit": 1}},
        {"type": "tool_search_output", "call_id": "2", "tools": [MAIL], "status": "completed", "execution": "client"},
        {"type": "local_shell_call", "call_id": "3", "action": {"type": "exec", "command": ["ls"]}},
        {"type": "local_shell_call_output", "id": "3", "output": "z"},
    ]
    found = read([user("q"), *items], tools=[MAIL])[1:]
    assert [m.calls[0] for m in found[::2]] == [
        ToolCall("1", "mail__write", '{"input": "a\\"b"}'),
        ToolCall("2", "tool_search", '{"limit": 1, "query": "mail"}'),
        ToolCall("3", "local_shell", '{"command": ["ls"], "type": "exec"}'),
    ]
    assert [(m.answers, m.text[:2]) for m in found[1::2]] == [("1", "xy"), ("2", "[{"), ("3", "z")]


def shuffled(value: Any, seed: int) -> Any:
    """The same JSON with its keys in another order."""
    if isinstance(value, list):
        return [shuffled(item, seed) for item in value]
    if not isinstance(value, dict):
        return value
    keys = list(value)
    random.Random(seed).shuffle(keys)
    return {key: shuffled(value[key], seed) for key in keys}


SCHEMA = {
    "type": "object",
    "properties": {"path": {"type": "string", "description": "p"}, "body": {}},
    "required": ["path", "body"],
}


@settings(deadline=None)
@given(seed=st.integers(0, 1 << 30))
def test_the_order_of_keys_changes_nothing(seed: int) -> None:
    body = {
        "model": "policy",
        "input": [user("q"), call("a"), output(call("a"))],
        "tools": [{**RUN, "parameters": SCHEMA}, PATCH, MAIL],
    }
    one, other = Responses().parse(orjson.dumps(body)), Responses().parse(orjson.dumps(shuffled(body, seed)))
    assert one.digest == other.digest and one.chains == other.chains
    assert orjson.dumps(one.tools) == orjson.dumps(other.tools)
    after = Responses().parse(orjson.dumps(shuffled(body, seed)), one.history)
    assert after.history.head is one.history.head


async def test_c08_the_prompt_is_that_of_the_same_history_in_the_other_dialects(stack: Stack) -> None:
    """C08: items without id or status, empty content, a custom call and its output; function, custom and hosted tools."""
    stack.says(tool_call("patch", '{"input": "a\\nb"}'), "x", "x")
    tools = [{**RUN, "parameters": SCHEMA}, PATCH, {"type": "web_search"}]
    made = {"type": "custom_tool_call", "call_id": "c1", "name": "patch", "input": "raw"}
    given = [user("a"), {"role": "assistant", "content": "b"}, {"role": "assistant", "content": []}, made, output(made)]
    [again] = (await ask(stack, given, tools=tools)).output
    assert (again.type, again.name, again.input) == ("custom_tool_call", "patch", "a\nb")
    function = {"id": "c1", "type": "function", "function": {"name": "patch", "arguments": {"input": "raw"}}}
    history: Items = [user("a"), {"role": "assistant", "content": "b", "tool_calls": [function]}]
    history.append({"role": "tool", "tool_call_id": "c1", "content": "ok"})
    one = {"name": "run", "description": "run it", "parameters": SCHEMA}
    two = {
        "name": "patch",
        "description": "change files",
        "parameters": {"type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"]},
    }
    await stack.say(history, "g.1.0", tools=[{"type": "function", "function": one}, {"type": "function", "function": two}])
    use = {"type": "tool_use", "id": "c1", "name": "patch", "input": {"input": "raw"}}
    blocks: Items = [user("a"), {"role": "assistant", "content": [{"type": "text", "text": "b"}, use]}]
    blocks.append({"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1", "content": "ok"}]})
    shaped = [{**tool, "input_schema": tool["parameters"]} for tool in (one, two)]
    own = [{key: value for key, value in tool.items() if key != "parameters"} for tool in shaped]
    asked: dict[str, Any] = {"model": "policy", "max_tokens": 99, "messages": blocks, "tools": own}
    await messages_client.client(stack, execution="g.2.0").messages.create(**asked)
    assert stack.sent()[0] == stack.sent()[1] == stack.sent()[2]
    assert "tool of type web_search left out" in stack.calls()[0].notes


def codex(items: Items) -> Items:
    """Message ids go, reasoning keeps its own and gets `content: null`."""
    found = [{**item, "content": None} if item["type"] == "reasoning" else dict(item) for item in items]
    return [
        item if item["type"] == "reasoning" else {k: v for k, v in item.items() if k not in ("id", "status")} for item in found
    ]


def without_reasoning(items: Items) -> Items:
    return [item for item in items if item["type"] != "reasoning"]


def reasoning_last(items: Items) -> Items:
    return sorted(items, key=lambda item: item["type"] == "reasoning")


def reasoning_trimmed(items: Items) -> Items:
    return [{**item, "summary": [], "encrypted_content": "x"} if item["type"] == "reasoning" else item for item in items]


def reasoning_as_text(items: Items) -> Items:
    said = next((item["summary"][0]["text"] for item in items if item["type"] == "reasoning"), "")
    kept = without_reasoning(items)
    for item in kept:
        if item["type"] == "message":
            item["content"] = f"<think>{said}</think>{item['content'][0]['text']}"
    return kept


def arguments_rewritten(items: Items) -> Items:
    return [{**item, "arguments": '{"a":1.1}'} if item["type"] == "function_call" else item for item in items]


def tool_renamed(items: Items) -> Items:
    return [{**item, "name": "other"} if item["type"] == "function_call" else item for item in items]


def easy_text(items: Items) -> Items:
    return [{"role": "assistant", "content": item["content"][0]["text"]} if item["type"] == "message" else item for item in items]


def empty_left_null(items: Items) -> Items:
    return [{**item, "content": None} if item.get("content") == [] else item for item in items]


def kept(items: Items) -> Items:
    return items


REWRITINGS = [
    kept,
    codex,
    without_reasoning,
    reasoning_last,
    reasoning_trimmed,
    reasoning_as_text,
    arguments_rewritten,
    tool_renamed,
    easy_text,
    empty_left_null,
]


@pytest.mark.parametrize("rewritten", REWRITINGS)
@pytest.mark.parametrize(
    "answer",
    [
        "<think>\nlet me see\n</think>\n\non it\n" + tool_call("run", '{"a":  1.10}') + "\n" + tool_call("run", '{"a": tru'),
        "on it\n" + tool_call("run", '{"b": 2, "a": 12345678901234567890}'),
        "<think>\nlet me see\n</think>\n\n" + tool_call("run", "{}"),
    ],
)
async def test_each_turn_goes_on_from_the_sampled_ids(stack: Stack, rewritten: Callable[[Items], Items], answer: str) -> None:
    stack.says(answer, answer, "done")
    history: Items = [{"role": "developer", "content": "be good"}, user("q")]
    for _ in range(2):
        made = (await ask(stack, history, tools=[RUN])).to_dict()["output"]
        outputs = [output(item) for item in made if item["type"] == "function_call"]
        history += [*rewritten(copy.deepcopy(made)), *outputs]
    await ask(stack, history, tools=[RUN])
    calls = stack.calls()
    assert [record.continuity for record in calls] == [Continuity.ROOT, Continuity.BRIDGED, Continuity.BRIDGED]
    assert [record.parent for record in calls[1:]] == [record.call for record in calls[:2]]
    check(stack)


CHANGES = (
    "continue",
    "continue",
    "again",
    "edit",
    "drop",
    "swap",
    "duplicate",
    "rewrite",
    "summary",
    "other-tools",
    "other-instructions",
)
step = st.tuples(st.sampled_from(CHANGES), st.integers(0, 10_000), st.sampled_from(OUTPUTS), st.booleans(), st.booleans())


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=st.lists(step, min_size=1, max_size=12))
def test_the_record_is_what_was_sent(make_stack: MakeStack, steps: list[Any]) -> None:
    asyncio.run(play(make_stack(), steps))


async def play(stack: Stack, steps: list[Any]) -> None:
    histories: list[Items] = [[user("begin")]]
    bash = {**RUN, "name": "bash"}
    for change, seed, text, split, cut in steps:
        history = changed(histories, change, seed)
        stack.scripts.append(script(stack.rendering, text, split, cut))
        tools = [bash, PATCH] if change == "other-tools" else [bash]
        answer = await ask(stack, history, tools=tools, instructions=f"i{seed % 2}" if change == "other-instructions" else "i")
        made = answer.to_dict()["output"]
        calls = [item for item in made if item["type"] == "function_call"]
        histories.append([*history, *made, *([output(item) for item in calls] or [user(f"and {seed % 3}")])])
    check(stack)


def changed(histories: list[Items], change: str, seed: int) -> Items:
    history = copy.deepcopy(histories[-1])
    at = seed % len(history)
    match change:
        case "again":
            return copy.deepcopy(histories[seed % len(histories)])
        case "edit":
            history[at] = user(f"edited {seed % 2}")
        case "drop" if len(history) > 1:
            del history[at]
        case "swap":
            history[at], history[-1] = history[-1], history[at]
        case "duplicate":
            history.insert(at, history[at])
        case "rewrite":
            return [item for item in history if item.get("type") != "reasoning"]
        case "summary":
            return [user(f"summary {seed % 2}")]
    return history


ITEMS = [
    user("a"),
    user("b"),
    assistant("a"),
    assistant(""),
    thought("t"),
    call("x"),
    call("y"),
    output(call("x")),
    call(wire_id("0" * 32, 0)),
]
bodies = st.lists(st.sampled_from(ITEMS), min_size=1, max_size=9)


@settings(deadline=None)
@given(
    before=bodies,
    after=bodies,
    shared=st.integers(0, 9),
    tools=st.sampled_from([[RUN], [PATCH]]),
    instructions=st.sampled_from(["", "i"]),
)
def test_a_history_read_with_the_last_one_is_as_read_alone(
    before: Items, after: Items, shared: int, tools: Items, instructions: str
) -> None:
    last = Responses().parse(orjson.dumps({"model": "policy", "input": before, "tools": [RUN], "instructions": "i"})).history
    new = orjson.dumps({"model": "policy", "input": before[:shared] + after, "tools": tools, "instructions": instructions})
    alone, known = Responses().parse(new), Responses().parse(new, last)
    assert (alone.chains, alone.messages, alone.tools, alone.digest) == (known.chains, known.messages, known.tools, known.digest)
    assert (alone.history.raw, alone.history.ends, alone.notes) == (known.history.raw, known.history.ends, known.notes)

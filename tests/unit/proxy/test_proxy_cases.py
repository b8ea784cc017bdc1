"""Cases that neighbours' users reported, at this proxy; those of every dialect stand in test_cases_in_every_dialect.py."""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any

import pytest

from gyre_engine.events.calls import Continuity, ExecutionClosed, Finish, Role, TreeClosed
from gyre_engine.events.executions import ToolCalled, ToolReturned
from gyre_engine.keys import mint
from gyre_engine.sampling.port import MismatchedOutput
from gyre_engine.sampling.scripted import Gate, Script, ScriptedEngine
from gyre_engine.trees import facts
from gyre_engine.trees.tree import TrajectoryTree
from producers.proxy.rendering import Rendering
from producers.proxy.role_rules import RoleRule
from producers.proxy.settings import RunSampling
from producers.proxy.tokens import ChatTokenizer
from tests.unit.proxy.conftest import BASH, SECRET, MakeStack, Stack, tool, tool_call, until, user


def deltas(text: str, field: str = "content") -> list[str]:
    """The deltas of a stream, and that it ends as it must."""
    lines = [line.removeprefix("data: ") for line in text.split("\n\n") if line and not line.startswith(":")]
    assert lines[-1] == "[DONE]"
    chunks = [json.loads(line) for line in lines[:-1]]
    return [choice["delta"][field] for chunk in chunks for choice in chunk["choices"] if choice["delta"].get(field)]


async def test_c12_the_stop_token_is_recorded_counted_and_in_the_next_prompt(stack: Stack) -> None:
    """C12: ids [a, b, EOS], finish stop."""
    end = stack.rendering.stop_ids[0]
    a, b = stack.rendering.tokenizer.encode("xy")
    stack.says(Script((a, b, end)), "z")
    body = (await stack.chat([user("q")])).json()
    assert body["usage"]["completion_tokens"] == 3
    [record] = stack.calls()
    assert record.output_ids.tolist() == [a, b, end] and len(record.logprobs) == 3 and record.finish is Finish.STOP
    await stack.say([user("q"), body["choices"][0]["message"], user("next")])
    first, second = stack.sent()
    assert second[: len(first) + 3] == [*first, a, b, end]


async def test_c14_what_was_sampled_is_never_encoded_again(stack: Stack) -> None:
    """C14: the model splits "hello" in two where the tokenizer makes one; the harness sends it back."""
    tokenizer, end = stack.rendering.tokenizer, stack.rendering.stop_ids[0]
    split = (*tokenizer.encode("hel"), *tokenizer.encode("lo"))
    assert tokenizer.decode(split) == "hello" and len(tokenizer.encode("hello")) == 1
    stack.says(Script((*split, end)), "yes")
    message = await stack.say([user("q")])
    assert message["content"] == "hello"
    await stack.say([user("q"), {"role": "assistant", "content": "hello"}, user("again")])
    first, second = stack.sent()
    assert second[: len(first) + len(split) + 1] == [*first, *split, end]
    [_, record] = stack.calls()
    assert record.continuity is Continuity.BRIDGED and record.prefix_len == len(first) + len(split) + 1
    assert "hello" not in tokenizer.decode(record.new_input_ids.tolist())


@pytest.mark.parametrize(("ids", "logprobs"), [(None, 5), (5, 4)])
async def test_c15_an_answer_that_does_not_add_up_is_untrainable(stack: Stack, ids: int | None, logprobs: int) -> None:
    """C15: (a) 5 log-probabilities and no ids, (b) 5 ids and 4 log-probabilities; (c) stands in test_sglang_stream.py."""
    stack.says(Script((), error=MismatchedOutput("r", ids, logprobs)))
    response = await stack.chat([user("q")])
    assert response.status_code == 502
    [record] = stack.calls()
    assert record.untrainable is not None and len(record.output_ids) == len(record.logprobs) == 0
    assert f"{logprobs} log-probabilities" in record.untrainable and not facts.of_call(record).trainable
    assert (await stack.client.get("/healthz")).json()["unusable"] == 1


async def test_c16_a_template_that_drops_thinking_branches_at_the_first_differing_token(stack: Stack) -> None:
    """C16: a turn with thinking, a plain user message, another turn."""
    stack.says("<think>\nhm\n</think>\n\nfour", "five")
    message = await stack.say([user("2+2")])
    assert message == {"role": "assistant", "content": "four", "reasoning_content": "hm"}
    await stack.say([user("2+2"), message, user("2+3")])
    first, second = stack.calls()
    assert stack.prompts() == stack.sent()
    decode = stack.rendering.tokenizer.decode
    assert decode(stack.sent()[1]) == (
        "<|im_start|>user\n2+2<|im_end|>\n<|im_start|>assistant\nfour<|im_end|>\n<|im_start|>user\n2+3<|im_end|>\n<|im_start|>assistant\n"
    )
    assert second.continuity is Continuity.REWRITTEN
    assert second.parent == first.call and second.prefix_len == len(stack.sent()[0])
    four = first.output_ids[-5:].tolist()
    assert second.new_input_ids[:5].tolist() == four
    [closed] = trees_of(stack)
    assert closed.sampled_tokens == closed.tree_tokens == len(first.output_ids) + len(second.output_ids)


def trees_of(stack: Stack) -> list[TreeClosed]:
    """The closed trees of what stands on the log, one an execution."""
    found = []
    for execution in dict.fromkeys(call.execution for call in stack.calls()):
        tree, calls = TrajectoryTree(execution), [call for call in stack.calls() if call.execution == execution]
        for call in calls:
            tree.add(facts.of_call(call))
        found.append(tree.close(ExecutionClosed(execution=execution, owner_epoch=1, calls=len(calls), last_call=calls[-1].call)))
    return [tree for tree in found if tree is not None]


async def test_c18_tool_call_ids_are_unique_and_restore_their_own_payload(stack: Stack) -> None:
    """C18: the same parser twice, arguments "ls" then "pwd"; the third turn resends both, rewritten."""
    stack.says(tool_call("exec", '"ls"'), tool_call("exec", '"pwd"'), "end")
    history: list[dict[str, Any]] = [user("go")]
    for _ in range(2):
        message = await stack.say(history, tools=[BASH])
        history += [message, tool(message["tool_calls"][0]["id"], "out")]
    ids = [message["tool_calls"][0]["id"] for message in history if message["role"] == "assistant"]
    assert len(set(ids)) == 2
    for message in history:
        for call in message.get("tool_calls", []):
            call["function"]["arguments"] = "rewritten"
    await stack.say(history, tools=[BASH])
    prompt = stack.rendering.tokenizer.decode(stack.sent()[2])
    assert prompt.index('"arguments": "ls"') < prompt.index('"arguments": "pwd"') and "rewritten" not in prompt


async def test_c18_a_rewritten_history_gets_the_original_payload_back(stack: Stack) -> None:
    """C18: also where nothing else of the history is known."""
    stack.says(tool_call("exec", '{"cmd":   "ls"}'), "end")
    message = await stack.say([user("go")], tools=[BASH])
    message["tool_calls"][0]["function"]["arguments"] = '{"cmd":"ls"}'
    call = message["tool_calls"][0]["id"]
    await stack.say([user("a summary came before"), message, tool(call, "out")], tools=[BASH])
    assert '{"cmd":   "ls"}' in stack.rendering.tokenizer.decode(stack.sent()[1])


@pytest.mark.parametrize("marked", [{}, {"x-stainless-retry-count": "1"}])
async def test_c26a_a_twin_of_a_running_call_is_joined(make_stack: MakeStack, marked: dict[str, str]) -> None:
    """C26: (a) the same body while the first still runs, marked as a retry or not (some clients never mark theirs)."""
    gate = Gate()
    stack = make_stack(cells=False)
    engine = ScriptedEngine(lambda _: stack.scripts.pop(0), gate=gate)
    stack.cell("a", engine=engine)
    stack.says("one", "two")
    first = asyncio.ensure_future(stack.say([user("q")]))
    await until(lambda: bool(engine.requests))
    headers = {"authorization": f"Bearer {mint(SECRET, 'g.0.0')}", **marked}
    body = {"model": "policy", "messages": [user("q")]}
    second = asyncio.ensure_future(stack.client.post("/v1/chat/completions", json=body, headers=headers))
    await until(lambda: stack.service.counts["joined"] == 1)
    await gate.open()
    assert (await first) == (await second).json()["choices"][0]["message"] == {"role": "assistant", "content": "one"}
    assert len(stack.calls()) == len(engine.requests) == 1


async def test_c26a_an_answer_that_was_lost_is_served_again(stack: Stack) -> None:
    """C26: (a) once more after the answer was lost on its way: the same ids, one node."""
    stack.says("one", "two")
    body = json.dumps({"model": "policy", "messages": [user("q")]}).encode()
    await lose_the_answer(stack, body)
    headers = {"authorization": f"Bearer {mint(SECRET, 'g.0.0')}", "x-stainless-retry-count": "1"}
    again = await stack.client.post("/v1/chat/completions", content=body, headers=headers)
    assert again.json()["choices"][0]["message"]["content"] == "one"
    assert len(stack.calls()) == 1


async def lose_the_answer(stack: Stack, body: bytes) -> None:
    """A client whose connection breaks when the answer is written."""
    sent = False

    async def receive() -> dict[str, Any]:
        nonlocal sent
        if not sent:
            sent = True
            return {"type": "http.request", "body": body, "more_body": False}
        return await asyncio.Event().wait()  # type: ignore[return-value]

    async def send(_: Any) -> None:
        raise OSError("the connection is gone")

    await stack.app(scope("g.0.0", body), receive, send)


def scope(execution: str, body: bytes) -> dict[str, Any]:
    return {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "POST",
        "path": "/v1/chat/completions",
        "raw_path": b"/v1/chat/completions",
        "query_string": b"",
        "root_path": "",
        "scheme": "http",
        "server": ("proxy", 80),
        "client": ("agent", 1),
        "headers": [(b"authorization", f"Bearer {mint(SECRET, execution)}".encode())],
    }


async def test_c26b_the_same_body_after_delivery_is_a_sibling(stack: Stack) -> None:
    """C26: (b) the same body again after its answer was delivered whole: two branches, each with its own sample."""
    stack.says("one", "two", "three", "four")
    message = await stack.say([user("q")])
    assert (await stack.say([user("q")]))["content"] == "two"
    history = [user("q"), message, user("more")]
    assert [(await stack.say(history))["content"] for _ in range(2)] == ["three", "four"]
    first, second, third, fourth = stack.calls()
    assert second.parent == first.call and second.prefix_len == first.prompt_tokens and len(second.new_input_ids) == 0
    assert fourth.parent == third.call and fourth.prefix_len == third.prompt_tokens and len(fourth.new_input_ids) == 0
    assert stack.prompts() == stack.sent()


async def test_c30_each_token_has_the_version_that_sampled_it(make_stack: MakeStack, tmp_path: Any) -> None:
    """C30: dispatched at v7, updated to v8 after token 57 of 128; staleness counts from 7."""
    gate = Gate()
    stack = make_stack(cells=False)
    engine = ScriptedEngine([Script(tuple(range(10, 138)), piece=1)], version="7", gate=gate)
    stack.cell("a", engine=engine)
    answer = asyncio.ensure_future(stack.chat([user("q")]))
    await gate.release(57)
    await until(lambda: any(len(c.sampled.ids) == 57 for calls in stack.service.open.values() for c in calls))
    await engine.load_weights(tmp_path, "8")
    await gate.open()
    assert (await answer).status_code == 200
    [record] = stack.calls()
    assert [(span.start, span.version, span.cell) for span in record.weight_spans] == [(0, 7, "a"), (57, 8, "a")]
    assert len(record.output_ids) == 128 and facts.of_call(record).min_version == 7


async def test_the_runs_sampling_overrides_the_clients(make_stack: MakeStack) -> None:
    stack = make_stack(sampling=RunSampling(temperature=0.7, top_p=0.9, max_tokens=50))
    stack.says("a")
    await stack.say([user("q")], temperature=0.0, top_p=0.1, max_tokens=20, stop=["x"])
    [request] = stack.engines["a"].requests
    assert (request.params.temperature, request.params.top_p, request.params.max_tokens) == (0.7, 0.9, 20)
    [record] = stack.calls()
    assert record.temperature == 0.7 and "truncated" in (record.untrainable or "")
    assert "stop ignored" in record.notes


async def test_greedy_tokens_are_not_trained_on(make_stack: MakeStack) -> None:
    stack = make_stack(sampling=RunSampling(temperature=0.0))
    stack.says("a")
    await stack.say([user("q")])
    assert "greedy" in (stack.calls()[0].untrainable or "")


async def test_tool_events_name_the_call_and_the_result_once(stack: Stack) -> None:
    stack.says(tool_call("bash", '{"a": 1}') + "\n" + tool_call("bash", '{"a": 2}'), "end", "end")
    message = await stack.say([user("go")], tools=[BASH])
    ids = [call["id"] for call in message["tool_calls"]]
    history = [user("go"), message, tool(ids[0], "one"), tool(ids[1], "two")]
    final = await stack.say(history, tools=[BASH])
    await stack.say([*history, final, user("thanks")], tools=[BASH])
    called = [event for event in stack.events("tool-events") if isinstance(event, ToolCalled)]
    returned = [event for event in stack.events("tool-events") if isinstance(event, ToolReturned)]
    assert [(event.tool_call, event.arguments, event.call) for event in called] == [
        (ids[0], '{"a": 1}', stack.calls()[0].call),
        (ids[1], '{"a": 2}', stack.calls()[0].call),
    ]
    assert sorted((event.tool_call, event.content) for event in returned) == sorted([(ids[0], "one"), (ids[1], "two")])


async def test_a_call_with_broken_json_reaches_the_harness_as_it_is(stack: Stack) -> None:
    stack.says('<tool_call>\n{"name": "bash", "arguments": {"a": }}\n</tool_call>')
    message = await stack.say([user("go")], tools=[BASH])
    assert message["tool_calls"][0]["function"] == {"name": "bash", "arguments": '{"a": }'}


async def test_provenance_says_who_wrote_each_new_token(stack: Stack) -> None:
    stack.says(tool_call("bash", "{}"), "end")
    message = await stack.say([{"role": "system", "content": "s"}, user("u")], tools=[BASH])
    await stack.say(
        [{"role": "system", "content": "s"}, user("u"), message, tool(message["tool_calls"][0]["id"], "t")], tools=[BASH]
    )
    first, second = stack.calls()
    assert [span.provenance.value for span in first.input_spans] == ["system", "user", "system"]
    assert [span.provenance.value for span in second.input_spans] == ["system", "tool", "system"]
    begin, end = second.input_spans[1].start, second.input_spans[2].start
    text = stack.rendering.tokenizer.decode(second.new_input_ids[begin:end].tolist())
    assert text == "<|im_start|>user\n<tool_response>\nt\n</tool_response><|im_end|>\n"


def test_a_short_tail_bridges_like_the_whole_prompt(tokenizer: ChatTokenizer) -> None:
    from gyre_engine.trees.conversation import Author, Message

    rendering = Rendering(tokenizer, "qwen3")
    history = [Message(Author.SYSTEM, "s" * 3000), Message(Author.USER, "u" * 3000)]
    prompt = rendering.render(history, [], {}).ids
    output = [*tokenizer.encode("<think>\na\n</think>\n\nb"), rendering.stop_ids[0]]
    new = [Message(Author.TOOL, "t", answers="c")]
    whole = rendering.bridge(prompt, output, new, [], thinks=True)
    assert whole is not None and whole == rendering.bridge(prompt[-100:], output, new, [], thinks=True)


async def test_a_cancelled_call_keeps_its_finish(make_stack: MakeStack) -> None:
    gate = Gate()
    stack = make_stack(cells=False)
    engine = ScriptedEngine([Script(tuple(range(10, 60)), piece=1)], gate=gate)
    stack.cell("a", engine=engine)
    answer = asyncio.ensure_future(stack.chat([user("q")]))
    await gate.release(5)
    await until(lambda: any(len(c.sampled.ids) == 5 for calls in stack.service.open.values() for c in calls))
    closed = (await stack.internal("POST", "/internal/executions/g.0.0/close")).json()
    assert (await answer).status_code == 503
    [record] = stack.calls()
    assert record.finish is Finish.CANCELLED and record.output_ids.tolist() == list(range(10, 15))
    assert closed["calls"] == 1 and closed["tokens"] == 5


async def test_a_rule_of_the_config_writes_the_role_into_the_record(make_stack: MakeStack) -> None:
    rule = RoleRule(Role.SIDE, system=re.compile("memory"), user=re.compile("remember$"), tools=True)
    stack = make_stack(roles=(rule,))
    stack.says("a", "b")
    await stack.say([{"role": "system", "content": "You keep the memory."}, user("now remember")], tools=[BASH])
    await stack.say([{"role": "system", "content": "You keep the memory."}, user("now remember")])
    assert [call.role for call in stack.calls()] == [Role.SIDE, None]

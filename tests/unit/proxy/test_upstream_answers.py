"""Models that an upstream serves: asked in every dialect, answered in it, told as events, and never in the tree."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import openai
import pytest

from gyre_engine.events.calls import ExecutionClosed, Provenance
from gyre_engine.events.executions import UpstreamAnswered
from gyre_engine.keys import mint
from producers.proxy.settings import POLICY, Upstream
from producers.proxy.upstream import KeyMissing
from tests.unit.proxy import messages_client
from tests.unit.proxy.conftest import BASH, SECRET, MakeStack, Stack, tool, tool_call, until, user
from tests.unit.proxy.test_proxy_cases import scope
from tests.unit.proxy.test_proxy_routes import nothing, receiver
from tests.unit.proxy.upstream_server import UpstreamServer

KEY = "sk-of-the-upstream"


@pytest.fixture
def mixed(make_stack: MakeStack, upstream: UpstreamServer) -> Stack:
    """A proxy with the policy and an upstream's model."""
    models = {"policy": POLICY, "judge": Upstream(upstream.url, "gpt-x", "JUDGE_KEY")}
    return make_stack(models=models, environment={"JUDGE_KEY": KEY})


def openais(stack: Stack) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(api_key=mint(SECRET, "g.0.0"), base_url="http://proxy/v1", http_client=stack.client, max_retries=0)


def told(stack: Stack) -> list[UpstreamAnswered]:
    return [event for event in stack.events("tool-events") if isinstance(event, UpstreamAnswered)]


async def in_chat(stack: Stack, stream: bool) -> tuple[str, list[tuple[str, str]], int]:
    messages: list[Any] = [{"role": "system", "content": "be kind"}, user("q")]
    ask: dict[str, Any] = {"model": "judge", "messages": messages, "tools": [BASH], "max_tokens": 99}
    if not stream:
        answer = await openais(stack).chat.completions.create(**ask)
        message = answer.choices[0].message
        calls = [(call.id, call.function.arguments) for call in message.tool_calls]
        return message.content, calls, answer.usage.completion_tokens
    text, calls, used = "", [], 0
    async for chunk in await openais(stack).chat.completions.create(**ask, stream=True, stream_options={"include_usage": True}):
        used = chunk.usage.completion_tokens if chunk.usage else used
        for choice in chunk.choices:
            text += choice.delta.content or ""
            calls += [(call.id, call.function.arguments) for call in choice.delta.tool_calls or []]
    return text, calls, used


async def in_responses(stack: Stack, stream: bool) -> tuple[str, list[tuple[str, str]], int]:
    function = {"type": "function", **BASH["function"], "strict": False}
    ask: dict[str, Any] = {
        "model": "judge",
        "instructions": "be kind",
        "input": "q",
        "tools": [function],
        "max_output_tokens": 99,
    }
    if stream:
        events = [event async for event in await openais(stack).responses.create(**ask, stream=True)]
        answer = events[-1].response
    else:
        answer = await openais(stack).responses.create(**ask)
    calls = [(item.call_id, item.arguments) for item in answer.output if item.type == "function_call"]
    return answer.output_text, calls, answer.usage.output_tokens


async def in_messages(stack: Stack, stream: bool) -> tuple[str, list[tuple[str, str]], int]:
    ask: dict[str, Any] = {
        "model": "judge",
        "system": "be kind",
        "messages": [user("q")],
        "tools": [messages_client.BASH],
        "max_tokens": 99,
    }
    if stream:
        async with messages_client.client(stack).messages.stream(**ask) as events:
            answer = await events.get_final_message()
    else:
        answer = await messages_client.client(stack).messages.create(**ask)
    text = "".join(block.text for block in answer.content if block.type == "text")
    calls = [(block.id, json.dumps(block.input)) for block in answer.content if block.type == "tool_use"]
    return text, calls, answer.usage.output_tokens


@pytest.mark.parametrize("ask", [in_chat, in_responses, in_messages])
@pytest.mark.parametrize("stream", [False, True])
async def test_an_upstream_answers_in_the_dialect_of_its_client(
    mixed: Stack, upstream: UpstreamServer, ask: Any, stream: bool
) -> None:
    upstream.says("hi there", ("bash", '{"a": 1}'), ("bash", '{"a": 2}'))
    text, calls, used = await ask(mixed, stream)
    assert text == "hi there" and [arguments for _, arguments in calls] == ['{"a": 1}', '{"a": 2}'] and used == 5
    [body] = upstream.asked
    assert body["model"] == "gpt-x" and body["max_tokens"] == 99 and body["stream"] is False
    assert body["messages"] == [{"role": "system", "content": "be kind"}, {"role": "user", "content": "q"}]
    [offered] = body["tools"]
    assert offered["type"] == "function" and offered["function"]["name"] == "bash"
    assert upstream.headers[0]["authorization"] == f"Bearer {KEY}"
    [event] = told(mixed)
    assert (event.execution, event.model, event.host, event.status) == ("g.0.0", "judge", upstream.host, 200)
    assert (event.input_tokens, event.output_tokens) == (11, 5) and event.took_us > 0
    assert mixed.calls() == [] and mixed.sent() == []


@pytest.mark.parametrize("dialect", ["chat", "messages"])
async def test_reasoning_and_a_cut_answer_reach_the_client(mixed: Stack, upstream: UpstreamServer, dialect: str) -> None:
    upstream.says("so", finish="length", reasoning_content="hm")
    if dialect == "chat":
        choice = (await mixed.chat([user("q")], model="judge")).json()["choices"][0]
        assert (choice["message"]["reasoning_content"], choice["finish_reason"]) == ("hm", "length")
        return
    ask: dict[str, Any] = {"model": "judge", "max_tokens": 9, "messages": [user("q")]}
    answer = await messages_client.client(mixed).messages.create(**ask)
    assert [block.type for block in answer.content] == ["thinking", "text"] and answer.stop_reason == "max_tokens"
    assert (answer.usage.input_tokens, answer.usage.cache_read_input_tokens) == (7, 4)


async def test_ids_of_tool_calls_stay_unique_whatever_the_upstream_calls_them(mixed: Stack, upstream: UpstreamServer) -> None:
    upstream.says(None, ("bash", "{}"), ("bash", "{}"))
    upstream.says(None, ("bash", "{}"))
    mixed.says(tool_call("bash", "{}"))
    one = await mixed.say([user("q")], model="judge", tools=[BASH])
    two = await mixed.say([user("r")], model="judge", tools=[BASH])
    three = await mixed.say([user("s")], tools=[BASH])
    ids = [call["id"] for message in (one, two, three) for call in message["tool_calls"]]
    assert len(set(ids)) == 4
    assert ids[0].startswith(f"call_{told(mixed)[0].call[:24]}")


async def test_a_history_with_tools_goes_to_the_upstream_as_chat(mixed: Stack, upstream: UpstreamServer) -> None:
    mixed.says("on it\n" + tool_call("bash", '{"a":  1}'))
    upstream.says("done")
    message = await mixed.say([user("go")], tools=[BASH])
    call = message["tool_calls"][0]
    await mixed.say([user("go"), message, tool(call["id"], "out")], tools=[BASH], model="judge")
    _, asked, result = upstream.asked[0]["messages"]
    assert asked == {"role": "assistant", "content": "on it", "tool_calls": [call]}
    assert result == {"role": "tool", "tool_call_id": call["id"], "content": "out"}
    assert [event.TYPE for event in mixed.events("tool-events")] == ["tool-called", "tool-returned", "upstream-answered"]


async def test_an_upstreams_turn_in_the_policys_history_is_context(mixed: Stack, upstream: UpstreamServer) -> None:
    mixed.says("mine", "mine again")
    upstream.says("theirs")
    history: list[dict[str, Any]] = [user("q")]
    history += [await mixed.say(history), user("now you")]
    history += [await mixed.say(history, model="judge"), user("and you")]
    await mixed.say(history)
    first, second = mixed.calls()
    assert second.parent == first.call and mixed.prompts() == mixed.sent()
    assert second.prefix_len >= first.prompt_tokens + len(first.output_ids)
    decode = mixed.rendering.tokenizer.decode
    ends = [span.start for span in second.input_spans[1:]] + [len(second.new_input_ids)]
    by = [
        (span.provenance, decode(second.new_input_ids[span.start : end]))
        for span, end in zip(second.input_spans, ends, strict=True)
    ]
    assert [provenance for provenance, text in by if "theirs" in text] == [Provenance.ASSISTANT]
    assert "mine" not in decode(second.new_input_ids)
    assert Provenance.POLICY not in {span.provenance for span in second.input_spans}


async def test_a_stream_is_kept_alive_while_the_upstream_thinks(make_stack: MakeStack, upstream: UpstreamServer) -> None:
    stack = make_stack(models={"judge": Upstream(upstream.url)}, quiet_s=0.01)
    upstream.release.clear()
    upstream.says("late")
    body = json.dumps({"model": "judge", "messages": [user("q")], "stream": True}).encode()
    sent: list[bytes] = []

    async def send(message: Any) -> None:
        sent.append(message.get("body", b""))
        if b": waiting" in sent[-1]:
            upstream.release.set()

    await stack.app(scope("g.0.0", body), receiver(body, asyncio.Event()), send)
    assert b"late" in b"".join(sent) and b"[DONE]" in sent[-2]
    assert upstream.asked[0]["model"] == "judge"


async def test_the_same_request_twice_is_asked_once(mixed: Stack, upstream: UpstreamServer) -> None:
    upstream.release.clear()
    upstream.says("once")
    answers = [asyncio.ensure_future(mixed.say([user("q")], model="judge")) for _ in range(2)]
    await until(lambda: mixed.service.counts["joined"] == 1 and bool(upstream.asked))
    upstream.release.set()
    assert [(await answer)["content"] for answer in answers] == ["once", "once"]
    assert len(upstream.asked) == 1 and len(told(mixed)) == 1


async def test_a_client_that_leaves_ends_the_request_at_the_upstream(mixed: Stack, upstream: UpstreamServer) -> None:
    upstream.release.clear()
    body = json.dumps({"model": "judge", "messages": [user("q")]}).encode()
    gone = asyncio.Event()
    serving = asyncio.ensure_future(mixed.app(scope("g.0.0", body), receiver(body, gone), nothing))
    await until(lambda: bool(upstream.asked))
    gone.set()
    await asyncio.wait_for(serving, 5)
    await until(lambda: upstream.left == 1 and bool(told(mixed)))
    assert told(mixed)[0].status == 0


async def test_closing_ends_the_calls_of_upstreams_and_counts_records_alone(mixed: Stack, upstream: UpstreamServer) -> None:
    mixed.says("a")
    await mixed.say([user("q")])
    upstream.release.clear()
    answer = asyncio.ensure_future(mixed.chat([user("q")], model="judge"))
    await until(lambda: bool(upstream.asked))
    closed = (await mixed.internal("POST", "/internal/executions/g.0.0/close")).json()
    assert closed["calls"] == 1 and (await answer).status_code == 503
    last = mixed.events()[-1]
    assert isinstance(last, ExecutionClosed) and (last.calls, last.last_call) == (1, mixed.calls()[0].call)


async def test_a_star_can_be_an_upstream_that_is_asked_for_the_name_as_it_comes(
    make_stack: MakeStack, upstream: UpstreamServer
) -> None:
    stack = make_stack(models={"policy": POLICY, "*": Upstream(upstream.url + "/")})
    upstream.says("a")
    await stack.say([user("q")], model="gpt-5")
    assert upstream.asked[0]["model"] == "gpt-5" and "authorization" not in upstream.headers[0]
    assert [model.id async for model in openais(stack).models.list()] == ["policy"]


@pytest.mark.parametrize("environment", [{}, {"JUDGE_KEY": " "}, {"JUDGE_KEY": "k\u00e9y"}, {"JUDGE_KEY": "a\nb"}])
async def test_a_key_that_is_not_there_keeps_the_proxy_from_starting(make_stack: MakeStack, environment: dict[str, str]) -> None:
    with pytest.raises(KeyMissing, match="JUDGE_KEY"):
        make_stack(models={"judge": Upstream("http://127.0.0.1:9/v1", "x", "JUDGE_KEY")}, environment=environment)

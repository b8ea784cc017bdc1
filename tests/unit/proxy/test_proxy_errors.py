"""What is refused, in OpenAI's shape, read by OpenAI's own client; and what its client reads of answers."""

from __future__ import annotations

from typing import Any

import openai
import pytest

from gyre_engine.events.executions import Discarded, DiscardReason, Dispatched
from gyre_engine.keys import execution_of, mint
from producers.proxy.feed import Feed
from tests.unit.proxy.conftest import BASH, SECRET, MakeStack, Stack, tool_call, user


def client(stack: Stack, key: str | None = None) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(
        api_key=key or mint(SECRET, "g.0.0"), base_url="http://proxy/v1", http_client=stack.client, max_retries=0
    )


async def ask(stack: Stack, key: str | None = None, **fields: Any) -> Any:
    return await client(stack, key).chat.completions.create(**{"model": "policy", "messages": [user("q")], **fields})


async def test_openais_client_reads_an_answer_with_parallel_tool_calls(stack: Stack) -> None:
    stack.says("on it\n" + tool_call("bash", '{"a": 1}') + "\n" + tool_call("bash", '{"a": 2}'))
    answer = await ask(stack, tools=[BASH])
    [choice] = answer.choices
    assert choice.finish_reason == "tool_calls" and choice.message.content == "on it"
    assert [call.function.arguments for call in choice.message.tool_calls] == ['{"a": 1}', '{"a": 2}']
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


async def test_openais_client_reads_a_stream(stack: Stack) -> None:
    calls_text = tool_call("bash", '{"a": 1}') + "\n" + tool_call("bash", '{"a": 2}')
    stack.says("<think>\nlet me see\n</think>\n\non it \n" + calls_text, piece=1)
    text, reasoning, calls, finish, usage = "", "", {}, [], None
    stream = await ask(stack, tools=[BASH], stream=True, stream_options={"include_usage": True})
    async for chunk in stream:
        usage = chunk.usage or usage
        for choice in chunk.choices:
            text += choice.delta.content or ""
            reasoning += getattr(choice.delta, "reasoning_content", None) or ""
            for call in choice.delta.tool_calls or []:
                calls[call.index] = (call.id, call.function.name, call.function.arguments)
            finish += [choice.finish_reason] if choice.finish_reason else []
    assert (text, reasoning, finish) == ("on it", "let me see", ["tool_calls"])
    assert [(name, arguments) for _, name, arguments in calls.values()] == [("bash", '{"a": 1}'), ("bash", '{"a": 2}')]
    [record] = stack.calls()
    assert usage is not None and usage.completion_tokens == len(record.output_ids)


async def test_models_lists_the_names(stack: Stack) -> None:
    assert [model.id async for model in client(stack).models.list()] == ["policy"]


async def test_a_wrong_key_is_401(stack: Stack) -> None:
    for key in ("gyre-g.0.0-0123", mint(b"another secret", "g.0.0"), "sk-1"):
        with pytest.raises(openai.AuthenticationError) as caught:
            await ask(stack, key)
        assert caught.value.code == "invalid_api_key"


async def test_an_unknown_model_is_404(stack: Stack) -> None:
    with pytest.raises(openai.NotFoundError) as caught:
        await ask(stack, model="gpt-5")
    assert caught.value.code == "model_not_found" and "policy" in caught.value.message


async def test_a_star_maps_every_other_name(make_stack: MakeStack) -> None:
    stack = make_stack(models={"*": "policy"})
    stack.says("ok")
    assert (await ask(stack, model="gpt-5")).model == "gpt-5"


@pytest.mark.parametrize(
    "body",
    [
        b"{",
        b"[]",
        b'"x"',
        b"\xff",
        b"{}",
        b'{"model": "policy"}',
        b'{"model": "policy", "messages": []}',
        b'{"model": "policy", "messages": [{"role": "nobody", "content": ""}]}',
        b'{"model": "policy", "messages": ["x"]}',
        b'{"model": "policy", "messages": [{"role": "user", "content": 3}]}',
        b'{"model": "policy", "messages": [{"role": "user", "content": "x"}], "n": 2}',
        b'{"model": "policy", "messages": [{"role": "user", "content": "x"}], "max_tokens": 0}',
        b'{"model": "policy", "messages": [{"role": "user", "content": "x"}], "tools": [{"type": "function"}]}',
        b"[" * 100_000,
    ],
)
async def test_what_is_no_request_is_400(stack: Stack, body: bytes) -> None:
    headers = {"authorization": f"Bearer {mint(SECRET, 'g.0.0')}"}
    response = await stack.client.post("/v1/chat/completions", content=body, headers=headers)
    assert response.status_code == 400
    error = response.json()["error"]
    assert error["type"] == "invalid_request_error" and error["message"] and set(error) == {"message", "type", "param", "code"}


async def test_images_are_refused(stack: Stack) -> None:
    part = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}
    with pytest.raises(openai.BadRequestError) as caught:
        await ask(stack, messages=[{"role": "user", "content": [part]}])
    assert caught.value.code == "unsupported_content" and caught.value.param == "messages[0].content"


async def test_unknown_fields_and_part_lists_are_taken(stack: Stack) -> None:
    stack.says("ok")
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b", "cache_control": {"type": "ephemeral"}}]
    response = await stack.chat([{"role": "developer", "content": "s"}, {"role": "user", "content": parts}], frobnicate=1)
    assert response.status_code == 200
    assert "user\nab<|im_end|>" in stack.rendering.tokenizer.decode(stack.sent()[0])


async def test_unknown_routes_and_methods_have_the_same_shape(stack: Stack) -> None:
    assert (await stack.client.get("/v1/nothing")).json()["error"]["code"] == "not_found"
    assert (await stack.client.get("/v1/chat/completions")).status_code == 405


async def test_a_closed_execution_refuses_its_key(stack: Stack) -> None:
    stack.says("ok")
    await ask(stack)
    first = (await stack.internal("POST", "/internal/executions/g.0.0/close")).json()
    assert first == (await stack.internal("POST", "/internal/executions/g.0.0/close")).json()
    assert first["calls"] == 1 and first["tokens"] == 3
    with pytest.raises(openai.PermissionDeniedError):
        await ask(stack)


async def test_a_superseded_attempt_is_refused(stack: Stack) -> None:
    stack.service.dispatched("g.0.1")
    with pytest.raises(openai.PermissionDeniedError):
        await ask(stack)
    stack.says("ok")
    await ask(stack, mint(SECRET, "g.0.1"))


async def test_a_discarded_execution_is_closed_by_the_feed(stack: Stack) -> None:
    stack.says("ok")
    await ask(stack)
    stack.log.append(Discarded(execution="g.0.0", reason=DiscardReason.OVERALL_TIMEOUT, final=True, wall_us=1))
    stack.log.append(dispatched("h.0.1"))
    feed = Feed(stack.log, stack.service)
    await feed.start()
    await stack.service.settle(5)
    await feed.stop()
    assert [event.TYPE for event in stack.events()] == ["proxy-owns", "model-call", "execution-closed"]
    for execution in ("g.0.0", "h.0.0"):
        with pytest.raises(openai.PermissionDeniedError):
            await ask(stack, mint(SECRET, execution))


def dispatched(execution: str) -> Dispatched:
    return Dispatched(
        execution=execution,
        group="h",
        index=0,
        attempt=1,
        group_size=1,
        group_number=0,
        class_number=0,
        query="q",
        source="s",
        split="train",
        harness="mini",
        weight_version=0,
    )


async def test_internal_routes_want_the_internal_token(stack: Stack) -> None:
    for key in ("", mint(SECRET, "g.0.0"), mint(SECRET, "internal")):
        response = await stack.client.post("/internal/executions/g.0.0/close", headers={"authorization": f"Bearer {key}"})
        assert response.status_code == 401


def test_a_key_names_its_execution_and_nothing_else() -> None:
    key = mint(SECRET, "group-1.0.2")
    assert execution_of(SECRET, key) == "group-1.0.2"
    assert execution_of(b"another", key) is None
    assert execution_of(SECRET, key[:-1] + ("0" if key[-1] != "0" else "1")) is None
    assert execution_of(SECRET, key.replace("0.2", "0.3")) is None
    assert execution_of(SECRET, "gyre-\udcff-é") is None

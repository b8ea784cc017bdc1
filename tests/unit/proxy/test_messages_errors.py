"""What is refused, in the shape of Anthropic's API, read by its own client; and what its client retries."""

from __future__ import annotations

import json
import random
from typing import Any

import anthropic
import pytest

from gyre_engine.keys import mint
from gyre_engine.sampling.port import MismatchedOutput
from gyre_engine.sampling.scripted import Script
from producers.proxy.dialects.messages import Messages
from tests.unit.proxy.conftest import SECRET, MakeStack, Stack
from tests.unit.proxy.messages_client import BASH, client

USER: list[Any] = [{"role": "user", "content": "q"}]


async def ask(stack: Stack, key: str | None = None, **fields: Any) -> Any:
    return await client(stack, key).messages.create(**{"model": "policy", "max_tokens": 99, "messages": USER, **fields})


async def post(stack: Stack, body: bytes, path: str = "/v1/messages?beta=true", **headers: str) -> Any:
    return await stack.client.post(path, content=body, headers={"x-api-key": mint(SECRET, "g.0.0"), **headers})


def shape(response: Any) -> tuple[int, str]:
    """Status and type of an error; it has the API's shape and says something."""
    body = response.json()
    assert body["type"] == "error" and set(body["error"]) == {"type", "message"} and body["error"]["message"]
    return response.status_code, body["error"]["type"]


async def test_a_wrong_key_is_an_authentication_error(stack: Stack) -> None:
    for key in ("gyre-g.0.0-0123", mint(b"another secret", "g.0.0"), "sk-ant-1"):
        with pytest.raises(anthropic.AuthenticationError) as caught:
            await ask(stack, key)
        assert caught.value.type == "authentication_error"
    with pytest.raises(anthropic.AuthenticationError):
        await client(stack, "sk-ant-1").models.list()


async def test_an_unknown_model_is_a_not_found_error(stack: Stack) -> None:
    with pytest.raises(anthropic.NotFoundError) as caught:
        await ask(stack, model="claude-opus-9")
    assert caught.value.type == "not_found_error" and "policy" in caught.value.message
    with pytest.raises(anthropic.NotFoundError):
        await client(stack).messages.count_tokens(model="claude-opus-9", messages=USER)


async def test_a_closed_execution_is_a_permission_error(stack: Stack) -> None:
    stack.says("ok")
    await ask(stack)
    await stack.internal("POST", "/internal/executions/g.0.0/close")
    with pytest.raises(anthropic.PermissionDeniedError) as caught:
        await ask(stack)
    assert caught.value.type == "permission_error"


async def test_c35_a_history_over_the_limit_says_that_the_prompt_is_too_long(make_stack: MakeStack) -> None:
    stack = make_stack(context_limit=40)
    for stream in (False, True):
        with pytest.raises(anthropic.BadRequestError) as caught:
            await ask(stack, messages=[{"role": "user", "content": "x" * 40}], stream=stream)
        found = caught.value.body["error"]  # type: ignore[index]
        length = await client(stack).messages.count_tokens(model="policy", messages=[{"role": "user", "content": "x" * 40}])
        assert found == {
            "type": "invalid_request_error",
            "message": f"prompt is too long: {length.input_tokens} tokens > 40 maximum",
        }
    assert stack.sent() == [] and stack.calls() == []


@pytest.mark.parametrize(
    "block",
    [
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA=="}},
        {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": "AA=="}},
        {"type": "document", "source": {"type": "url", "url": "http://x"}},
        {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}},
    ],
)
async def test_what_is_no_text_is_refused(stack: Stack, block: Any) -> None:
    inside = {"type": "tool_result", "tool_use_id": "a", "content": [block]}
    for content in ([block], [inside]):
        with pytest.raises(anthropic.BadRequestError) as caught:
            await ask(stack, messages=[{"role": "user", "content": content}])
        assert caught.value.type == "invalid_request_error" and "messages.0.content.0" in caught.value.message
    assert stack.calls() == []


async def test_documents_of_text_are_read(stack: Stack) -> None:
    stack.says("ok")
    plain = {"type": "document", "title": "T", "source": {"type": "text", "media_type": "text/plain", "data": "one"}}
    parts = {"type": "document", "source": {"type": "content", "content": [{"type": "text", "text": "two"}]}}
    await ask(stack, messages=[{"role": "user", "content": [plain, parts]}])
    assert "user\nT\nonetwo<|im_end|>" in stack.rendering.tokenizer.decode(stack.sent()[0])


BODIES = [
    b"{",
    b"[]",
    b"\xff",
    b"{}",
    b'{"model": "policy"}',
    b'{"model": "policy", "messages": []}',
    b'{"model": "policy", "messages": [3]}',
    b'{"model": "policy", "messages": [{"role": "tool", "content": ""}]}',
    b'{"model": "policy", "messages": [{"role": ["user"], "content": ""}]}',
    b'{"model": "policy", "messages": [{"role": "user"}]}',
    b'{"model": "policy", "messages": [{"role": "user", "content": 3}]}',
    b'{"model": "policy", "messages": [{"role": "user", "content": ["x"]}]}',
    b'{"model": "policy", "messages": [{"role": "user", "content": [{"type": "tool_result", "content": 3}]}]}',
    b'{"model": "policy", "messages": [{"role": "assistant", "content": [{"type": "tool_use", "id": "a"}]}]}',
    b'{"model": "policy", "messages": [{"role": "user", "content": "x"}], "max_tokens": 0}',
    b'{"model": "policy", "messages": [{"role": "user", "content": "x"}], "system": 3}',
    b'{"model": "policy", "messages": [{"role": "user", "content": "x"}], "system": [3]}',
    b'{"model": "policy", "messages": [{"role": "user", "content": "x"}], "tools": {}}',
    b'{"model": "policy", "messages": [{"role": "user", "content": "x"}], "tools": [3]}',
    b'{"model": "policy", "messages": [{"role": "user", "content": "x"}], "tools": [{"name": "a"}]}',
    b'{"model": "policy", "messages": [{"role": "user", "content": "x"}], "tools": [{"input_schema": {}}]}',
    b"[" * 100_000,
]


@pytest.mark.parametrize("body", BODIES)
async def test_what_is_no_request_is_an_invalid_request_error(stack: Stack, body: bytes) -> None:
    for path in ("/v1/messages?beta=true", "/v1/messages/count_tokens"):
        assert shape(await post(stack, body, path)) == (400, "invalid_request_error")


async def test_unknown_paths_and_methods_have_the_same_shape(stack: Stack) -> None:
    assert shape(await post(stack, b"{}", "/v1/messages/batches")) == (404, "not_found_error")
    assert shape(await stack.client.get("/v1/messages")) == (405, "invalid_request_error")
    assert shape(await stack.client.get("/v1/files", headers={"anthropic-version": "2023-06-01"})) == (404, "not_found_error")
    assert "code" in (await stack.client.get("/v1/files")).json()["error"]
    assert (await stack.client.head("/")).status_code == 200


async def test_a_body_that_is_too_large_is_refused_with_and_without_its_length(make_stack: MakeStack) -> None:
    stack = make_stack(body_limit=1000)

    async def chunks() -> Any:
        for _ in range(11):
            yield b" " * 100

    assert shape(await post(stack, b" " * 1001)) == (413, "request_too_large")
    headers = {"x-api-key": mint(SECRET, "g.0.0")}
    assert shape(await stack.client.post("/v1/messages", content=chunks(), headers=headers)) == (413, "request_too_large")


async def test_what_may_be_asked_again_is_overloaded_and_says_when(make_stack: MakeStack) -> None:
    stack = make_stack(cells=False, wait_limit_s=0.05)
    with pytest.raises(anthropic.InternalServerError) as caught:
        await ask(stack)
    assert (caught.value.status_code, caught.value.type) == (529, "overloaded_error")
    assert float(caught.value.response.headers["retry-after"]) > 0


async def test_an_answer_that_does_not_add_up_is_an_api_error(stack: Stack) -> None:
    stack.says(Script((), error=MismatchedOutput("r", None, 5)))
    with pytest.raises(anthropic.InternalServerError) as caught:
        await ask(stack)
    assert caught.value.type == "api_error"


async def test_the_clients_retry_obeys_the_hint(make_stack: MakeStack, monkeypatch: pytest.MonkeyPatch) -> None:
    stack = make_stack(cells=False, wait_limit_s=0.05)
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        stack.cell("a")
        stack.says("ok")

    retrying = client(stack).with_options(max_retries=1)
    monkeypatch.setattr("anyio.sleep", sleep)
    found = await retrying.messages.create(model="policy", max_tokens=9, messages=USER)
    assert found.content[0].text == "ok" and slept == [5.0]  # type: ignore[union-attr]


async def test_a_stream_that_breaks_ends_with_an_error_and_its_terminal_event(make_stack: MakeStack) -> None:
    stack = make_stack(cells=False, quiet_s=0.01, wait_limit_s=0.1)
    response = await post(stack, json.dumps({"model": "policy", "messages": USER, "stream": True}).encode())
    events = [event.split("\n") for event in response.text.removesuffix("\n\n").split("\n\n")]
    names = [event[0] for event in events]
    assert response.status_code == 200 and names[0] == "event: message_start" and "event: ping" in names
    assert names[-2:] == ["event: error", "event: message_stop"]
    assert json.loads(events[-2][1].removeprefix("data: "))["error"]["type"] == "overloaded_error"
    with pytest.raises(anthropic.APIStatusError) as caught:
        [event async for event in await ask(stack, stream=True)]
    assert caught.value.type == "overloaded_error"


async def test_what_does_not_count_here_is_noted(stack: Stack) -> None:
    stack.says("ok")
    search: Any = {"type": "web_search_20250305", "name": "web_search"}
    sampling = {"temperature": 0.5, "x": 1}
    await ask(stack, tools=[BASH, search], stop_sequences=["x"], tool_choice={"type": "any"}, extra_body=sampling)
    [record] = stack.calls()
    assert record.tools == 1 and set(record.notes) == {
        "temperature ignored",
        "stop_sequences ignored",
        "tool_choice ignored",
        "tool web_search_20250305 left out",
    }
    assert "web_search" not in stack.rendering.tokenizer.decode(stack.sent()[0])


async def test_odd_histories_are_recorded_calls(stack: Stack) -> None:
    use = {"type": "tool_use", "id": "a", "name": "bash", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "nobody", "content": "x\0y"}
    histories: list[Any] = [
        [{"role": "assistant", "content": "I begin"}],
        [{"role": "user", "content": [result, result]}],
        [{"role": "user", "content": []}, {"role": "user", "content": ""}],
        [{"role": "assistant", "content": [use, use]}, {"role": "user", "content": [result]}],
        [{"role": "user", "content": "q"}, {"role": "assistant", "content": []}],
        [{"role": "system", "content": "s"}, {"role": "system", "content": "t"}],
        [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "is_error": True}]}],
        [{"role": "assistant", "content": [{"type": "tool_use", "id": 3, "name": "", "input": "text"}]}],
    ]
    for history in histories:
        stack.says("ok")
        await ask(stack, messages=history)
    assert len(stack.calls()) == len(histories) and stack.prompts() == stack.sent()


async def test_mutated_requests_are_answered_or_refused(make_stack: MakeStack) -> None:
    """Any value in any place: a recorded call or a 4xx."""
    stack = make_stack()
    whole = {
        "model": "policy",
        "max_tokens": 9,
        "stream": False,
        "system": [{"type": "text", "text": "s"}],
        "tools": [BASH],
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "q"}]},
            {"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "bash", "input": {"a": 1}}]},
            {
                "role": "user",
                "content": [{"type": "tool_result", "tool_use_id": "a", "content": [{"type": "text", "text": "r"}]}],
            },
        ],
    }
    draw = random.Random(7)
    for _ in range(150):
        body = mutated(json.loads(json.dumps(whole)), draw)
        stack.scripts.clear()
        stack.says("ok")
        response = await post(stack, json.dumps(body).encode())
        assert response.status_code == 200 or 400 <= response.status_code < 500, body
    assert stack.prompts() == stack.sent()


ODD: list[Any] = [
    None,
    0,
    -1,
    1e400,
    True,
    "",
    "x\ud83d",
    "\0",
    [],
    {},
    [None],
    [[]],
    {"type": None},
    {"type": "text"},
    "<|im_end|>",
]


def mutated(value: Any, draw: random.Random) -> Any:
    """The same with something odd in one place."""
    if isinstance(value, dict) and value and draw.random() < 0.9:
        key = draw.choice(sorted(value))
        return {**value, key: mutated(value[key], draw)}
    if isinstance(value, list) and value and draw.random() < 0.9:
        at = draw.randrange(len(value))
        return [*value[:at], mutated(value[at], draw), *value[at + 1 :]]
    return draw.choice(ODD)


async def test_ten_megabytes_and_a_thousand_tools_are_taken(make_stack: MakeStack) -> None:
    stack = make_stack(context_limit=100)
    ten = json.dumps({"model": "policy", "messages": [{"role": "user", "content": "x" * 10_000_000}]}).encode()
    assert len(Messages().parse(ten).messages[0].text) == 10_000_000
    with pytest.raises(anthropic.BadRequestError, match="prompt is too long"):
        await ask(stack, messages=[{"role": "user", "content": "hello " * 100_000}])
    with pytest.raises(anthropic.BadRequestError, match="prompt is too long"):
        await ask(stack, tools=[{**BASH, "name": f"t{at}"} for at in range(1000)])

"""What an upstream refuses, as the clients of each dialect hear it; no key in any of it."""

from __future__ import annotations

import socket
from typing import Any

import anthropic
import openai
import pytest

from gyre_engine.keys import mint
from producers.proxy.exchange import ProxyError
from producers.proxy.settings import Upstream
from producers.proxy.upstream.refusals import refusal, retry_after
from producers.proxy.upstream.wire import Unreadable, read
from tests.unit.proxy import messages_client
from tests.unit.proxy.conftest import SECRET, MakeStack, Stack, user
from tests.unit.proxy.test_upstream_answers import told
from tests.unit.proxy.upstream_server import UpstreamServer

KEY = "sk-of-the-upstream"
TOO_LONG = (
    "This model's maximum context length is 128 tokens. However, your messages resulted in 500 tokens. Please reduce the length."
)


@pytest.fixture
def judged(make_stack: MakeStack, upstream: UpstreamServer) -> Stack:
    return make_stack(models={"judge": Upstream(upstream.url, "gpt-x", "JUDGE_KEY")}, environment={"JUDGE_KEY": KEY})


async def in_chat(stack: Stack, **fields: Any) -> Any:
    return await openais(stack).chat.completions.create(model="judge", messages=[user("q")], **fields)  # type: ignore[list-item]


async def in_responses(stack: Stack, **fields: Any) -> Any:
    return await openais(stack).responses.create(model="judge", input="q", **fields)


async def in_messages(stack: Stack, **fields: Any) -> Any:
    messages: list[Any] = [user("q")]
    return await messages_client.client(stack).messages.create(model="judge", max_tokens=9, messages=messages, **fields)


def openais(stack: Stack) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(api_key=mint(SECRET, "g.0.0"), base_url="http://proxy/v1", http_client=stack.client, max_retries=0)


DIALECTS = [in_chat, in_responses, in_messages]
ERRORS = (openai.APIStatusError, anthropic.APIStatusError)


async def refused(ask: Any, stack: Stack, **fields: Any) -> Any:
    """The error that the official client raises; it does not hold the key."""
    with pytest.raises(ERRORS) as caught:
        await ask(stack, **fields)
    assert KEY not in caught.value.message and KEY not in str(caught.value.body)
    return caught.value


@pytest.mark.parametrize("ask", DIALECTS)
@pytest.mark.parametrize("stream", [False, True])
async def test_too_many_requests_are_passed_on_with_their_time(
    judged: Stack, upstream: UpstreamServer, ask: Any, stream: bool
) -> None:
    upstream.sends(429, {"error": {"message": "slow down", "code": "rate_limit_exceeded"}}, retry_after="7")
    error = await refused(ask, judged, stream=stream)
    assert isinstance(error, openai.RateLimitError | anthropic.RateLimitError)
    assert error.response.headers["retry-after"] == "7" and "slow down" in error.message
    assert [(event.status, event.output_tokens) for event in told(judged)] == [(429, 0)]
    assert judged.service.executions["g.0.0"].errors == 0


@pytest.mark.parametrize("ask", DIALECTS)
@pytest.mark.parametrize("status", [500, 502, 503, 529])
async def test_what_failed_there_can_be_asked_again(judged: Stack, upstream: UpstreamServer, ask: Any, status: int) -> None:
    upstream.sends(status, b"<html>oops</html>")
    error = await refused(ask, judged)
    assert error.status_code == (529 if ask is in_messages else 503) and int(error.response.headers["retry-after"]) > 0
    assert upstream.host in error.message and str(status) in error.message
    assert told(judged)[0].status == status and judged.service.executions["g.0.0"].errors == 1


@pytest.mark.parametrize("ask", DIALECTS)
async def test_a_key_that_is_refused_is_the_stacks_fault_and_not_shown(judged: Stack, upstream: UpstreamServer, ask: Any) -> None:
    upstream.sends(401, {"error": {"message": f"Incorrect API key provided: {KEY}"}})
    error = await refused(ask, judged)
    assert error.status_code == 502 and "models.key_env" in error.message


@pytest.mark.parametrize("ask", DIALECTS)
async def test_a_request_that_the_upstream_does_not_take_keeps_its_status(
    judged: Stack, upstream: UpstreamServer, ask: Any
) -> None:
    upstream.sends(422, {"error": {"message": f"no tools with {KEY}"}})
    error = await refused(ask, judged)
    assert error.status_code == 422 and "no tools with ***" in error.message
    assert judged.service.executions["g.0.0"].errors == 0


async def test_a_history_that_is_too_long_there_is_said_in_the_words_that_clients_shorten_by(
    judged: Stack, upstream: UpstreamServer
) -> None:
    for _ in range(2):
        upstream.sends(400, {"error": {"message": TOO_LONG, "code": "context_length_exceeded"}})
    assert (await refused(in_messages, judged)).body["error"]["message"] == "prompt is too long: 500 tokens > 128 maximum"
    assert (await refused(in_chat, judged)).code == "context_length_exceeded"


@pytest.mark.parametrize("ask", DIALECTS)
async def test_an_upstream_out_of_reach_can_be_asked_again(make_stack: MakeStack, monkeypatch: Any, ask: Any) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    stack = make_stack(models={"judge": Upstream(f"http://127.0.0.1:{port}/v1")})
    error = await refused(ask, stack)
    assert error.status_code in (503, 529) and f"127.0.0.1:{port} cannot be reached" in error.message
    assert told(stack)[0].status == 0


@pytest.mark.parametrize("ask", DIALECTS)
async def test_an_upstream_that_stays_silent_is_left_after_the_limit(
    make_stack: MakeStack, upstream: UpstreamServer, ask: Any
) -> None:
    stack = make_stack(models={"judge": Upstream(upstream.url)}, wait_limit_s=0.2)
    upstream.release.clear()
    error = await refused(ask, stack)
    assert error.status_code in (503, 529) and f"{upstream.host} did not answer within" in error.message


async def test_an_error_in_a_stream_that_has_begun_ends_it(make_stack: MakeStack, upstream: UpstreamServer) -> None:
    stack = make_stack(models={"judge": Upstream(upstream.url)}, quiet_s=0.01, wait_limit_s=0.3)
    upstream.release.clear()
    with pytest.raises(openai.APIError, match="did not answer within"):
        async for _ in await in_chat(stack, stream=True):
            pass


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b'{"choices": []}',
        b'{"choices": [{}]}',
        b'{"choices": 3}',
        b'{"choices": [{"message": "a"}]}',
        b'{"choices": [{"message": {"content": "a", "tool_calls": [{"id": "x"}]}}]}',
    ],
)
async def test_an_answer_that_is_none_is_said_to_be_none(judged: Stack, upstream: UpstreamServer, body: bytes) -> None:
    upstream.sends(200, body)
    error = await refused(in_chat, judged)
    assert error.status_code == 502 and "no usable answer" in error.message
    with pytest.raises(Unreadable):
        read(body)


async def test_an_address_that_sends_elsewhere_is_no_answer(judged: Stack, upstream: UpstreamServer) -> None:
    upstream.sends(307, b"", location="http://127.0.0.1:9/")
    error = await refused(in_chat, judged)
    assert error.status_code == 502 and "models.url" in error.message and len(upstream.asked) == 1


def test_answers_of_other_servers_are_read_too() -> None:
    """Arguments as an object, content as parts, no usage, reasoning under its other name."""
    said = read(
        b'{"choices": [{"finish_reason": "stop", "message": {"content": [{"type": "text", "text": "a"}, {"text": "b"}],'
        b'"reasoning": "hm", "tool_calls": [{"function": {"name": "f", "arguments": {"x": 1}}}]}}]}'
    )
    assert (said.parsed.text, said.parsed.reasoning) == ("ab", "hm")
    assert [(asked.name, asked.arguments) for asked in said.parsed.calls] == [("f", '{"x":1}')]
    assert said.finish.value == "tool-calls" and (said.usage.prompt, said.usage.output) == (0, 0)


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("7", 7),
        ("0", 0),
        ("1.2", 2),
        ("-3", 0),
        ("1e9", 3600),
        ("inf", None),
        ("nan", None),
        ("", None),
        ("soon", None),
        ("Thu, 01 Jan 1970 00:01:40 GMT", 60),
        ("Thu, 01 Jan 1970 00:00:10 GMT", 0),
    ],
)
def test_the_time_until_asking_again_is_in_seconds_or_a_date(value: str, seconds: int | None) -> None:
    """The clock stands 40 s after the epoch: 00:01:40 is 60 s later."""
    assert retry_after(value, 40.0) == seconds


def test_without_a_time_the_proxy_names_one_for_failures_alone() -> None:
    found: list[ProxyError] = [refusal("h", status, {}, b"{}") for status in (429, 500)]
    assert [problem.retry_after for problem in found] == [None, 5]


def test_an_upstream_that_repeats_the_key_shows_it_to_nobody() -> None:
    """JSON may write a slash as `\\/`; of a long text only the beginning is shown, which might end inside the key."""
    bodies = [rb'{"error": {"message": "bad sk\/1"}}', b'{"error": "bad sk/1"}', b"bad sk/1", b"x" * 498 + b"sk/1"]
    shown = [refusal("h", 422, {}, body, key="sk/1").message.rpartition(": ")[2] for body in bodies]
    assert shown == ["bad ***", "bad ***", "bad ***", "x" * 498 + "**"]

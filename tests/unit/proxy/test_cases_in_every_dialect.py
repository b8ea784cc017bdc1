"""Cases that neighbours' users reported, in each of the three dialects."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgpack
import pytest

from gyre_engine.events.executions import ToolReturned
from gyre_engine.keys import mint
from gyre_engine.sampling.port import FinishReason
from gyre_engine.sampling.scripted import Script
from tests.unit.proxy import messages_client
from tests.unit.proxy.conftest import BASH, SECRET, MakeStack, Stack, tool, tool_call, user

FUNCTION = {"type": "function", "name": "bash", "parameters": {"type": "object", "properties": {}}}


@dataclass(frozen=True)
class Wire:
    """A dialect as bytes: where a request goes, what it says besides its messages, and the end of a stream."""

    path: str
    messages: str
    tools: Any
    end: str
    fields: tuple[tuple[str, Any], ...] = ()

    def body(self, content: str, stream: bool, tools: bool = False) -> bytes:
        """A request with one user message; `content` is JSON as it stands."""
        rest: dict[str, Any] = {
            "model": "policy",
            "stream": stream,
            **dict(self.fields),
            **({"tools": [self.tools]} if tools else {}),
        }
        return (json.dumps(rest)[:-1] + f', "{self.messages}": [{{"role": "user", "content": {content}}}]}}').encode()


DIALECTS = {
    "chat": Wire("/v1/chat/completions", "messages", BASH, "data: [DONE]\n\n"),
    "messages": Wire("/v1/messages", "messages", messages_client.BASH, '"message_stop"}\n\n', (("max_tokens", 999),)),
    "responses": Wire("/v1/responses", "input", FUNCTION, "}\n\n"),
}
each_dialect = pytest.mark.parametrize("dialect", DIALECTS)


async def post(stack: Stack, dialect: str, body: bytes, execution: str = "g.0.0") -> Any:
    return await stack.client.post(
        DIALECTS[dialect].path, content=body, headers={"authorization": f"Bearer {mint(SECRET, execution)}"}
    )


def pieces(text: str) -> Iterator[tuple[str, str]]:
    """(text or arguments, delta) of each delta of a stream, in any dialect."""
    for line in text.splitlines():
        if not line.startswith("data: {"):
            continue
        event = json.loads(line.removeprefix("data: "))
        for choice in event.get("choices", []):
            yield "text", choice["delta"].get("content") or ""
            for call in choice["delta"].get("tool_calls", []):
                yield "arguments", call["function"].get("arguments") or ""
        delta = event.get("delta")
        if event.get("type") == "content_block_delta":
            yield "text", delta.get("text", "")
            yield "arguments", delta.get("partial_json", "")
        elif event.get("type") == "response.output_text.delta":
            yield "text", delta
        elif event.get("type") == "response.function_call_arguments.delta":
            yield "arguments", delta


def joined(text: str, what: str) -> str:
    return "".join(delta for kind, delta in pieces(text) if kind == what)


@each_dialect
async def test_c03_a_character_cut_by_a_chunk_stays_whole_in_text_and_arguments(stack: Stack, dialect: str) -> None:
    """C03: one byte a chunk; then stopped after 2 of the emoji's 4 bytes."""
    ids = tuple(stack.rendering.tokenizer.encode("好😀"))
    assert len(ids) == 7
    stack.says("好😀" + tool_call("bash", '{"a": "好😀"}'), piece=1)
    stack.says(Script(ids[:5], finish_reason=FinishReason.LENGTH, piece=1))
    whole = (await post(stack, dialect, DIALECTS[dialect].body('"q"', True, tools=True))).text
    assert (joined(whole, "text"), joined(whole, "arguments")) == ("好😀", '{"a": "好😀"}') and "\ufffd" not in whole
    cut = (await post(stack, dialect, DIALECTS[dialect].body('"other"', True))).text
    assert joined(cut, "text") == "好\ufffd"
    assert stack.calls()[1].output_ids.tolist() == list(ids[:5])


def whole(dialect: str, body: dict[str, Any]) -> tuple[str, list[Any]]:
    """Text and tool calls' arguments of an answer that was not streamed."""
    if dialect == "chat":
        message = body["choices"][0]["message"]
        return message.get("content") or "", [call["function"]["arguments"] for call in message.get("tool_calls", [])]
    if dialect == "messages":
        blocks = body["content"]
        return "".join(block.get("text", "") for block in blocks), [block["input"] for block in blocks if "input" in block]
    texts = [part["text"] for item in body["output"] if item["type"] == "message" for part in item["content"]]
    return "".join(texts), [item["arguments"] for item in body["output"] if item["type"] == "function_call"]


@each_dialect
async def test_c03_wherever_an_answer_is_cut_it_says_the_same_streamed_and_whole(stack: Stack, dialect: str) -> None:
    """C03: cut after each of its ids, inside characters of the reasoning, the text and the arguments too."""
    ids = tuple(stack.rendering.tokenizer.encode("<think>\n好\n</think>\n\n😀 x" + tool_call("bash", '{"a": "好"}')))
    for length in range(1, len(ids) + 1):
        cut = Script(ids[:length], finish_reason=FinishReason.LENGTH, piece=1)
        stack.says(cut, cut)
        streamed = (await post(stack, dialect, DIALECTS[dialect].body('"q"', True, tools=True), f"g.{length}.0")).text
        answer = (await post(stack, dialect, DIALECTS[dialect].body('"q"', False, tools=True), f"h.{length}.0")).json()
        text, calls = whole(dialect, answer)
        written = joined(streamed, "arguments")
        if dialect == "messages":
            calls, written = calls or [{}], written or "{}"
            assert json.loads(written) == calls[0]
        else:
            assert written == "".join(calls)
        assert joined(streamed, "text") == text


@each_dialect
@pytest.mark.parametrize("stream", [False, True])
async def test_c04_a_lone_surrogate_becomes_the_replacement_character(stack: Stack, dialect: str, stream: bool) -> None:
    """C04: the same policy everywhere: 200, the prompt of a body with U+FFFD in its place, and a record in valid UTF-8."""
    stack.says("ok", "ok")
    wire = DIALECTS[dialect]
    response = await post(stack, dialect, wire.body('"x\\ud83d"', stream))
    assert response.status_code == 200 and "ok" in response.text
    assert "Traceback" not in response.text and '"error":{' not in response.text
    assert response.text.endswith(wire.end) or not stream
    await post(stack, dialect, wire.body('"x\\ufffd"', stream), "g.1.0")
    one, other = stack.sent()
    assert one == other and "x\ufffd" in stack.rendering.tokenizer.decode(one)
    for topic in ("model-calls", "tool-events"):
        for raw in stack.log.read_raw(topic):
            msgpack.unpackb(raw.value or b"", raw=False, unicode_errors="strict")


async def test_c04_a_lone_surrogate_in_a_tools_result_is_recorded_as_valid_utf_8(stack: Stack) -> None:
    """C04: the event shows what was asked with U+FFFD in its place."""
    stack.says(tool_call("bash", "{}"), "ok")
    message = await stack.say([user("go")], tools=[BASH])
    history = [user("go"), message, tool(message["tool_calls"][0]["id"], "x\ud83d")]
    body = json.dumps({"model": "policy", "messages": history, "tools": [BASH]}).encode()
    assert b"\\ud83d" in body and (await post(stack, "chat", body)).status_code == 200
    [shown] = [event.content for event in stack.events("tool-events") if isinstance(event, ToolReturned)]
    assert shown == "x\ufffd"


@each_dialect
async def test_c12_the_stop_token_is_recorded_and_counted(stack: Stack, dialect: str) -> None:
    """C12: ids [a, b, EOS]: ids, log-probabilities and the usage's output tokens are 3."""
    ids = (*stack.rendering.tokenizer.encode("xy"), stack.rendering.stop_ids[0])
    stack.says(Script(ids))
    usage = (await post(stack, dialect, DIALECTS[dialect].body('"q"', False))).json()["usage"]
    [record] = stack.calls()
    assert record.output_ids.tolist() == list(ids) and len(record.logprobs) == 3
    assert usage["completion_tokens" if dialect == "chat" else "output_tokens"] == 3


@each_dialect
@pytest.mark.parametrize("stream", [False, True])
async def test_c35_a_history_over_the_limit_is_refused_in_the_protocols_words(
    make_stack: MakeStack, dialect: str, stream: bool
) -> None:
    """C35: (a) a history one token over the limit; one token less is answered."""
    wire, sent = DIALECTS[dialect], make_stack()
    sent.says("ok")
    assert (await post(sent, dialect, wire.body('"q"', stream))).status_code == 200
    length = len(sent.sent()[0])
    fits, over = make_stack(context_limit=length + 1), make_stack(context_limit=length)
    fits.says(Script((5,)))
    assert (await post(fits, dialect, wire.body('"q"', stream))).status_code == 200
    response = await post(over, dialect, wire.body('"q"', stream))
    problem = response.json()["error"]
    assert response.status_code == 400
    if dialect == "messages":
        assert problem["message"] == f"prompt is too long: {length} tokens > {length} maximum"
    else:
        assert problem["code"] == "context_length_exceeded"
    assert over.sent() == [] and over.calls() == []

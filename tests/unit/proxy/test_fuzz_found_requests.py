"""Faults that `make fuzz` found in how requests are read and admitted, each as the kind that it stands for."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import Any

import httpx
import orjson
import pytest

from gyre_engine.events.calls import Finish
from gyre_engine.keys import mint
from gyre_engine.sampling.scripted import Gate, Script, ScriptedEngine
from tests.unit.proxy.conftest import SECRET, MakeStack, Stack, until, user
from tests.unit.proxy.test_proxy_cases import scope
from tests.unit.proxy.test_proxy_routes import nothing, receiver

PATHS = {"chat": "/v1/chat/completions", "messages": "/v1/messages", "responses": "/v1/responses"}
DEPTHS = (100, 240, 254, 255, 300, 500, 800, 900, 960, 980, 990, 1000, 1010, 1024, 1030, 5000, 100_000)


async def post(stack: Stack, path: str, body: bytes, execution: str = "g.0.0") -> httpx.Response:
    headers = {"authorization": f"Bearer {mint(SECRET, execution)}"}
    return await stack.client.post(path, content=body, headers=headers)


def is_error(dialect: str, response: httpx.Response) -> bool:
    fields = response.json()
    wanted = {"type", "message"} if dialect == "messages" else {"type", "message", "param", "code"}
    return set(fields["error"]) == wanted and (dialect != "messages" or fields["type"] == "error")


def nested(opening: bytes, closing: bytes, depth: int) -> bytes:
    return opening * depth + b'"x"' + closing * depth


def deep_bodies(depth: int) -> Iterator[tuple[str, bytes]]:
    """A body with something nested `depth` times, wherever a dialect looks into a value."""
    deep = nested(b'{"a":', b"}", depth)
    blocks = nested(b'{"type":"tool_result","content":[', b"]}", depth)
    document = nested(b'{"type":"document","source":{"type":"content","content":[', b"]}}", depth)
    ask = b'{"model":"policy","messages":[{"role":"user","content":"q"}'
    yield "chat", ask + b'],"x":' + deep + b"}"
    yield "chat", ask + b'],"tools":[{"type":"function","function":{"name":"f","parameters":' + deep + b"}}]}"
    yield "chat", ask + b',{"role":"assistant","tool_calls":[{"id":"c","function":{"name":"f","arguments":' + deep + b"}}]}]}"
    yield "messages", ask + b',{"role":"user","content":[' + blocks + b"]}]}"
    yield "messages", ask + b',{"role":"user","content":[' + document + b"]}]}"
    yield "messages", ask + b',{"role":"assistant","content":[{"type":"tool_use","id":"c","name":"f","input":' + deep + b"}]}]}"
    yield "messages", ask + b'],"tools":[{"name":"f","input_schema":' + deep + b"}]}"
    given = b'{"model":"policy","input":[{"role":"user","content":"q"}'
    yield "responses", given + b',{"type":"function_call","call_id":"c","name":"f","arguments":' + deep + b"}]}"
    yield "responses", given + b',{"type":"tool_search_output","call_id":"c","tools":' + deep + b"}]}"
    yield "responses", given + b',{"type":"local_shell_call","call_id":"c","action":' + deep + b"}]}"
    yield "responses", given + b'],"tools":[{"type":"function","name":"f","parameters":' + deep + b"}]}"


@pytest.mark.parametrize("depth", DEPTHS)
async def test_nesting_is_answered_or_refused_however_deep(stack: Stack, depth: int) -> None:
    stack.says(*["ok"] * 40)
    for dialect, body in deep_bodies(depth):
        for again in (body, body.replace(b'"q"', b'"q\\ud83d"')):  # the second is read by the lenient reader
            response = await post(stack, PATHS[dialect], again)
            assert response.status_code in (200, 400), (dialect, body[:120], response.text[:200])
            assert response.status_code == 200 or is_error(dialect, response)


def said(text: bytes) -> Iterator[tuple[str, str, bytes]]:
    """Each field whose text a format encodes, in each dialect, with `text` in it: (dialect, field, body)."""
    ask = b'{"model":"policy","messages":[{"role":"user","content":"q"}'
    answer = ask + b',{"role":"assistant","content":"x",'
    done = b',{"role":"tool","tool_call_id":"c","content":"r"}]}'
    call = b'"tool_calls":[{"id":"c","type":"function","function":{"name":"%b","arguments":"%b"}}]}'
    yield "chat", "text", b'{"model":"policy","messages":[{"role":"user","content":"' + text + b'"}]}'
    yield "chat", "arguments", answer + call % (b"f", b'{\\"a\\":\\"' + text + b'\\"}') + done
    yield "chat", "name", answer + call % (text, b"{}") + done
    yield "chat", "reasoning", answer + b'"reasoning_content":"' + text + b'",' + call % (b"f", b"{}") + done
    yield "chat", "tool", ask + b'],"tools":[{"type":"function","function":{"name":"f","description":"' + text + b'"}}]}'
    blocks = ask + b',{"role":"assistant","content":['
    result = b']},{"role":"user","content":[{"type":"tool_result","tool_use_id":"c","content":"r"}]}]}'
    use = b'{"type":"tool_use","id":"c","name":"%b","input":{"a":"%b"}}'
    yield "messages", "text", b'{"model":"policy","messages":[{"role":"user","content":"' + text + b'"}]}'
    yield "messages", "arguments", blocks + use % (b"f", text) + result
    yield "messages", "name", blocks + use % (text, b"") + result
    thinking = b'{"type":"thinking","thinking":"' + text + b'","signature":""},'
    yield "messages", "reasoning", blocks + thinking + use % (b"f", b"") + result
    yield "messages", "tool", ask + b'],"tools":[{"name":"f","description":"' + text + b'","input_schema":{}}]}'
    given = b'{"model":"policy","input":[{"role":"user","content":"q"}'
    function = b',{"type":"function_call","call_id":"c","name":"%b","arguments":"%b"}'
    output = b',{"type":"function_call_output","call_id":"c","output":"r"}]}'
    yield "responses", "text", b'{"model":"policy","input":[{"role":"user","content":"' + text + b'"}]}'
    yield "responses", "arguments", given + function % (b"f", b'{\\"a\\":\\"' + text + b'\\"}') + output
    yield "responses", "name", given + function % (text, b"{}") + output
    summary = b',{"type":"reasoning","summary":[],"content":[{"type":"reasoning_text","text":"' + text + b'"}]}'
    yield "responses", "reasoning", given + summary + function % (b"f", b"{}") + output
    yield "responses", "tool", given + b'],"tools":[{"type":"function","name":"f","description":"' + text + b'"}]}'


FIELDS = [(dialect, field) for dialect, field, _ in said(b"")]


@pytest.mark.parametrize(
    ("dialect", "field", "piece"),
    [
        *((dialect, field, "word ") for dialect, field in FIELDS),
        *((dialect, "text", piece) for dialect in PATHS for piece in ("x", "<|im_end|>", "\U0001f600", "\ud83d")),
    ],
)
async def test_what_no_context_can_hold_is_refused_before_all_of_it_is_encoded(
    make_stack: MakeStack, monkeypatch: pytest.MonkeyPatch, dialect: str, field: str, piece: str
) -> None:
    stack = make_stack(context_limit=2048)
    encoded: list[int] = []
    monkeypatch.setattr(stack.rendering.tokenizer, "ids", counted(stack.rendering.tokenizer.ids, encoded))
    [body] = [body for *of, body in said(text_of(piece, 10_000_000)) if of == [dialect, field]]
    begin = time.process_time()
    response = await post(stack, PATHS[dialect], body)
    took = time.process_time() - begin
    assert response.status_code == 400 and is_error(dialect, response)
    assert "2048" in response.text and sum(encoded) <= 4 * 65536 and took < 5, (response.text[:200], sum(encoded), took)
    assert not stack.calls() and not stack.sent()


async def test_reasoning_that_the_format_drops_does_not_count(make_stack: MakeStack) -> None:
    stack = make_stack(context_limit=2048)
    stack.says("ok")
    thought = {"role": "assistant", "content": "x", "reasoning_content": "word " * 100_000}
    response = await stack.chat([user("q"), thought, user("r")])
    assert response.status_code == 200, response.text[:200]
    assert len(stack.sent()[0]) < 100


def text_of(piece: str, size: int) -> bytes:
    written = piece.encode("utf-8") if piece != "\ud83d" else b"\\ud83d"
    return written * (size // len(written))


def counted(encode: Any, seen: list[int]) -> Any:
    def counting(text: str, *rest: Any, **more: Any) -> list[int]:
        seen.append(len(text))
        found: list[int] = encode(text, *rest, **more)
        return found

    return counting


async def test_the_size_that_is_told_of_what_is_far_too_long_is_about_its_size(make_stack: MakeStack) -> None:
    stack = make_stack(context_limit=1000)
    response = await post(stack, PATHS["messages"], orjson.dumps({"model": "policy", "messages": [user("ab " * 100_000)]}))
    told = int(response.json()["error"]["message"].split()[4])
    assert told == pytest.approx(len(stack.rendering.tokenizer.encode("ab " * 100_000)), rel=0.05)
    count = await post(stack, "/v1/messages/count_tokens", orjson.dumps({"model": "policy", "messages": [user("ab " * 100_000)]}))
    assert count.status_code == 200 and count.json()["input_tokens"] == told


@pytest.mark.parametrize("at", ["/v1/chat/completions/", "/v1/messages/", "/v1/responses/", "/v1/models/", "/healthz/"])
async def test_a_path_with_a_slash_too_many_is_refused_and_not_sent_elsewhere(stack: Stack, at: str) -> None:
    response = await post(stack, at, b"{}")
    assert response.status_code == 404 and is_error("messages" if "messages" in at else "chat", response)


@pytest.mark.parametrize(("dialect", "items"), [("messages", "messages"), ("responses", "input")])
async def test_a_record_names_few_of_many_ignored_things(stack: Stack, dialect: str, items: str) -> None:
    stack.says("ok")
    tools = [{"type": f"server_{at}"} for at in range(50_000)]
    response = await post(stack, PATHS[dialect], orjson.dumps({"model": "policy", items: [user("q")], "tools": tools}))
    assert response.status_code == 200, response.text
    [record] = stack.calls()
    assert len(record.notes) <= 20 and record.notes[-1] == "and 49984 more"


async def test_who_asks_again_right_after_going_away_gets_an_answer_and_not_the_end_of_the_first_call(
    make_stack: MakeStack,
) -> None:
    gate, stack = Gate(), make_stack(cells=False)
    ids = (*stack.rendering.tokenizer.encode("abc"), stack.rendering.stop_ids[0])
    engine = stack.cell("a", engine=ScriptedEngine(lambda _: Script(ids, piece=1), gate=gate))
    body, gone = orjson.dumps({"model": "policy", "messages": [user("q")]}), asyncio.Event()
    first = asyncio.ensure_future(stack.app(scope("g.0.0", body), receiver(body, gone), nothing))
    await until(lambda: len(engine.requests) == 1)
    gone.set()
    [call] = stack.service.open["g.0.0"]
    await until(call.cancel.is_set)
    second = asyncio.ensure_future(post(stack, PATHS["chat"], body))
    await until(lambda: len(engine.requests) == 2)
    await gate.open()
    response = await second
    await first
    assert response.status_code == 200 and response.json()["choices"][0]["message"]["content"] == "abc"
    assert [record.finish for record in stack.calls()] == [Finish.CANCELLED, Finish.STOP]

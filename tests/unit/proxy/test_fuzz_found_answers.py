"""Faults that `make fuzz` found in how a model's answers are read and worded, each as the kind that it stands for."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import numpy as np
import orjson
import pytest

from gyre_engine.events.cells import CellRole, CellStarted
from gyre_engine.events.executions import ToolCalled
from gyre_engine.sampling.port import Chunk, FinishReason, GenerateRequest, SamplingParams
from gyre_engine.sampling.scripted import ScriptedEngine
from producers.proxy import generation
from producers.proxy.generation import Job, Sampled, sample
from producers.proxy.router import Router
from producers.proxy.settings import RunSampling
from tests.unit.proxy.conftest import MakeStack, user
from tests.unit.proxy.test_fuzz_found_requests import PATHS, post

WRITTEN = {
    "a name that is a number": '{"name": 5, "arguments": {"a": 1}}',
    "a name that is a list": '{"name": ["f"], "arguments": {"a": 1}}',
    "a name that is an object": '{"name": {"f": 1}, "arguments": {"a": 1}}',
    "a name that is true": '{"name": true, "arguments": {"a": 1}}',
    "no object": '["name", "arguments"]',
    "half a character in the name": '{"name": "f\\ud83d", "arguments": {"a": 1}}',
    "half a character in the arguments": '{"name": "f", "arguments": {"a": "\\ud83d"}}',
    "half a character in text as arguments": '{"name": "f", "arguments": "\\ud83d"}',
    "half a character beside NaN": '{"name": "f", "arguments": {"a": NaN, "b": "\\ud83d"}}',
    "a number of 5,000 digits": '{"name": "f", "arguments": {"a": ' + "9" * 5000 + "}}",
    "arguments nested 300 times": '{"name": "f", "arguments": ' + '{"a":' * 300 + "1" + "}" * 300 + "}",
    "arguments nested 980 times": '{"name": "f", "arguments": ' + '{"a":' * 980 + "1" + "}" * 980 + "}",
    "arguments nested 2,500 times": '{"name": "f", "arguments": ' + "[" * 2500 + "]" * 2500 + "}",
}


def asked(dialect: str, stream: bool) -> bytes:
    field = "input" if dialect == "responses" else "messages"
    return orjson.dumps({"model": "policy", field: [user("q")], "stream": stream, "max_tokens": 30_000})


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("dialect", PATHS)
@pytest.mark.parametrize("what", WRITTEN)
async def test_whatever_a_model_writes_as_a_call_is_recorded_and_answered(
    make_stack: MakeStack, what: str, dialect: str, stream: bool
) -> None:
    stack = make_stack(sampling=RunSampling(max_tokens=30_000))
    stack.says(f"before\n<tool_call>\n{WRITTEN[what]}\n</tool_call>")
    response = await post(stack, PATHS[dialect], asked(dialect, stream))
    assert response.status_code == 200, response.text[:300]
    ends = {"chat": "[DONE]", "messages": "message_stop", "responses": "response.completed"}
    assert not stream or ends[dialect] in response.text.rstrip().rpartition("\n\n")[2]
    [record] = stack.calls()
    assert (
        len(record.output_ids) == len(stack.rendering.tokenizer.encode(f"before\n<tool_call>\n{WRITTEN[what]}\n</tool_call>")) + 1
    )
    assert "\ufffd" in response.text or "half" not in what or "\\ud83d" in response.text


async def test_a_call_that_no_parser_takes_is_still_a_call_by_its_text(make_stack: MakeStack) -> None:
    stack = make_stack(sampling=RunSampling(max_tokens=30_000))
    stack.says('<think>\nhm\n</think>\n\nsee\n<tool_call>\n{"name": "f", "arguments": {"a": ' + "9" * 5000 + "}}\n</tool_call>")
    response = await post(stack, PATHS["chat"], orjson.dumps({"model": "policy", "messages": [user("q")], "max_tokens": 20_000}))
    message = response.json()["choices"][0]["message"]
    assert message["content"] == "see" and message["reasoning_content"] == "hm"
    [event] = [record for record in stack.events("tool-events") if isinstance(record, ToolCalled)]
    assert event.name == "f" and message["tool_calls"][0]["function"]["arguments"].startswith('{"a": 999')


async def test_an_engine_that_does_not_answer_an_abort_is_waited_for_no_longer_than_its_grace(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It samples two tokens and then neither goes on nor hears: what it has sampled is kept."""
    monkeypatch.setattr(generation, "ABORT_GRACE_S", 0.01)
    cancel = asyncio.Event()

    class Deaf(ScriptedEngine):
        async def generate(self, request: GenerateRequest) -> AsyncGenerator[Chunk]:
            yield Chunk((7, 8), (-0.1, -0.2), "3")
            cancel.set()
            await asyncio.Event().wait()

        async def abort(self, rid: str | None) -> None:
            await asyncio.Event().wait()

    router = Router(lambda url: Deaf([]))
    router.apply([sampling_cell()])
    job = Job("g.0.0", "r", np.array([1, 2], dtype=np.int32), SamplingParams(), 100, 5.0)
    sampled, heard = Sampled(), list[Chunk]()
    async with asyncio.timeout(5):
        assert await sample(router, job, sampled, cancel, heard.append) is FinishReason.ABORT
    assert (sampled.ids, len(heard), router.at_once("other.0.0") is not None) == ([7, 8], 1, True)


def sampling_cell() -> CellStarted:
    return CellStarted(
        cell="a", position=0, incarnation="1", engine="scripted", engine_url="scripted://a", capacity=1, role=CellRole.SAMPLING,
        weight_version=3,
    )  # fmt: skip


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("sampled", "means"),
    [
        ("\\ud83d", "\ufffd"),
        ("a\\uDE00b", "a\ufffdb"),
        ("\\ud83d\\ud83d\\ude00", "\ufffd\U0001f600"),
        ("\\ud83d\\ude00", "\U0001f600"),
        ("\\\\ud83d", "\\ud83d"),
        ("\\\\\\ud83d\\n", "\\\ufffd\n"),
    ],
)
async def test_half_a_character_in_a_tools_input_leaves_the_body_readable_to_strict_clients(
    make_stack: MakeStack, sampled: str, means: str, stream: bool
) -> None:
    stack = make_stack()
    stack.says('<tool_call>\n{"name": "f", "arguments": {"a": "' + sampled + '"}}\n</tool_call>')
    response = await post(stack, PATHS["messages"], asked("messages", stream))
    if stream:
        events = [orjson.loads(line[6:]) for line in response.content.split(b"\n") if line.startswith(b"data: ")]
        [given] = [orjson.loads(event["delta"]["partial_json"]) for event in events if "partial_json" in event.get("delta", {})]
    else:
        [given] = [block["input"] for block in orjson.loads(response.content)["content"] if block["type"] == "tool_use"]
    assert given == {"a": means}

"""The chat endpoint: shapes, errors, and what is recorded."""

from __future__ import annotations

from typing import Any

import pytest

from gyre_engine.events.calls import Continuity, Finish
from tests.unit.proxy.conftest import BASH, Stack, tool, tool_call, user


async def test_an_answer_has_openai_shape_and_a_record(stack: Stack) -> None:
    stack.says("Hi you")
    body = (await stack.chat([user("hello")])).json()
    assert body["object"] == "chat.completion"
    assert body["choices"][0]["message"] == {"role": "assistant", "content": "Hi you"}
    assert body["choices"][0]["finish_reason"] == "stop"
    [record] = stack.calls()
    assert body["usage"]["completion_tokens"] == len("Hi you") + 1 == len(record.output_ids) == len(record.logprobs)
    assert body["usage"]["prompt_tokens"] == record.prompt_tokens == len(stack.sent()[0])
    assert record.finish is Finish.STOP and record.continuity is Continuity.ROOT and record.parent is None


async def test_the_next_turn_extends_the_sampled_ids(stack: Stack) -> None:
    stack.says(tool_call("bash", '{"a":  1}'), "done")
    history: list[dict[str, Any]] = [user("go")]
    message = await stack.say(history, tools=[BASH])
    [call] = message["tool_calls"]
    assert call["function"] == {"name": "bash", "arguments": '{"a":  1}'}
    call["function"]["arguments"] = '{"a":1}'
    await stack.say([*history, message, tool(call["id"], "ok")], tools=[BASH])
    first, second = stack.calls()
    assert second.continuity is Continuity.BRIDGED and second.parent == first.call
    sent = stack.sent()
    assert sent[1][: len(sent[0]) + len(first.output_ids)] == [*sent[0], *first.output_ids]
    assert stack.prompts() == sent


@pytest.mark.parametrize("value", [0, 0.0, 0.7])
async def test_a_temperature_that_does_not_count_is_noted_also_where_it_is_zero(stack: Stack, value: float) -> None:
    stack.says("a")
    await stack.say([user("q")], temperature=value)
    assert stack.calls()[0].notes == ("temperature ignored",)


async def test_fields_that_ask_for_nothing_are_not_noted(stack: Stack) -> None:
    stack.says("a")
    await stack.say([user("q")], temperature=None, logprobs=False, stop=[], tool_choice="auto")
    assert stack.calls()[0].notes == ()

"""The Responses endpoint, asked by OpenAI's own client: answers, events, tools."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest

from gyre_engine.events.calls import Finish
from gyre_engine.keys import mint
from gyre_engine.sampling.port import FinishReason
from gyre_engine.sampling.scripted import Script
from producers.proxy.dialects.responses import Responses
from producers.proxy.exchange import Channel, Piece
from tests.unit.proxy.conftest import SECRET, MakeStack, Stack, tool_call

RUN = {"type": "function", "name": "run", "description": "run it", "parameters": {"type": "object", "properties": {}}}
PATCH = {"type": "custom", "name": "patch", "description": "change files"}
MAIL = {
    "type": "namespace",
    "name": "mail",
    "description": "letters",
    "tools": [{**RUN, "name": "send"}, {**PATCH, "name": "write"}],
}


def client(stack: Stack) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(api_key=mint(SECRET, "g.0.0"), base_url="http://proxy/v1", http_client=stack.client, max_retries=0)


async def ask(stack: Stack, given: Any = "q", **fields: Any) -> Any:
    return await client(stack).responses.create(model="policy", input=given, **fields)


async def events(stack: Stack, given: Any = "q", **fields: Any) -> list[dict[str, Any]]:
    """The events of a stream, each with its `event:` line and the next number; the last one ends it."""
    body = {"model": "policy", "input": given, "stream": True, **fields}
    headers = {"authorization": f"Bearer {mint(SECRET, 'g.0.0')}"}
    text = (await stack.client.post("/v1/responses", json=body, headers=headers)).text
    found = []
    for block in text.removesuffix("\n\n").split("\n\n"):
        line, data = block.split("\n")
        found.append(json.loads(data.removeprefix("data: "), parse_float=pytest.fail))
        assert line == f"event: {found[-1]['type']}"
    assert [event["sequence_number"] for event in found] == list(range(len(found)))
    return found


async def test_an_answer_is_a_response_that_openais_client_reads(stack: Stack) -> None:
    stack.says("<think>\nlet me see\n</think>\n\non it")
    answer = await ask(stack, instructions="be good", metadata={"a": "b"})
    reasoning, message = answer.output
    assert (answer.object, answer.status, answer.output_text) == ("response", "completed", "on it")
    assert reasoning.type == "reasoning" and reasoning.summary[0].text == "let me see"
    assert message.role == "assistant" and message.status == "completed" and message.id
    [record] = stack.calls()
    usage = answer.usage
    assert (usage.input_tokens, usage.output_tokens) == (record.prompt_tokens, len(record.output_ids))
    assert usage.total_tokens == usage.input_tokens + usage.output_tokens
    assert usage.output_tokens_details.reasoning_tokens == len("\nlet me see\n") + 2
    assert "metadata ignored" in record.notes
    assert "system\nbe good<|im_end|>" in stack.rendering.tokenizer.decode(stack.sent()[0])


async def test_openais_client_reads_a_stream_with_reasoning_text_and_parallel_calls(stack: Stack) -> None:
    calls = tool_call("run", '{"a": 1}') + "\n" + tool_call("run", '{"a": 2}')
    stack.says("<think>\nlet me see\n</think>\n\non it \n" + calls, piece=1)
    text = ""
    async with client(stack).responses.stream(model="policy", input="q", tools=[RUN]) as stream:
        async for event in stream:
            if event.type == "response.output_text.delta":
                text += event.delta
        final = await stream.get_final_response()
    assert text == final.output_text == "on it" and final.status == "completed"
    assert [item.type for item in final.output] == ["reasoning", "message", "function_call", "function_call"]
    assert [item.arguments for item in final.output[2:]] == ['{"a": 1}', '{"a": 2}']
    assert len({item.call_id for item in final.output[2:]}) == 2


async def test_events_come_in_order_and_say_the_same_as_the_response(stack: Stack) -> None:
    stack.says("<think>\nhm\n</think>\n\nhi\n" + tool_call("run", "{}"), piece=1)
    found = await events(stack, tools=[RUN])
    kinds = [event["type"].removeprefix("response.") for event in found]
    assert list(dict.fromkeys(kinds)) == [
        "created",
        "in_progress",
        "output_item.added",
        "reasoning_summary_part.added",
        "reasoning_summary_text.delta",
        "content_part.added",
        "output_text.delta",
        "reasoning_summary_text.done",
        "reasoning_summary_part.done",
        "output_item.done",
        "output_text.done",
        "content_part.done",
        "function_call_arguments.delta",
        "function_call_arguments.done",
        "completed",
    ]
    response = found[-1]["response"]
    done = {event["output_index"]: event["item"] for event in found if event["type"] == "response.output_item.done"}
    added = {event["output_index"]: event["item"]["id"] for event in found if event["type"] == "response.output_item.added"}
    assert [done[at] for at in range(3)] == response["output"] and len(done) == 3
    assert added == {at: item["id"] for at, item in enumerate(response["output"])}
    assert {event["response"]["id"] for event in found if "response" in event} == {response["id"]}


async def test_nothing_is_finished_before_the_record_stands() -> None:
    stream = Responses().stream(Responses().parse(b'{"model": "policy", "input": "q", "stream": true}'), "r", 7)
    early = stream.opening() + stream.delta(Piece(Channel.REASONING, "hm")) + stream.delta(Piece(Channel.TEXT, "hi"))
    assert b".done" not in early and early.count(b"response.output_item.added") == 4


async def test_a_custom_tool_is_offered_as_a_function_and_comes_back_as_itself(stack: Stack) -> None:
    stack.says(tool_call("patch", '{"input": "*** Begin\\n+a\\"b"}'))
    answer = await ask(stack, tools=[PATCH])
    [call] = answer.output
    assert (call.type, call.name, call.input) == ("custom_tool_call", "patch", '*** Begin\n+a"b')
    prompt = stack.rendering.tokenizer.decode(stack.sent()[0])
    assert '"name": "patch"' in prompt and '"required": ["input"]' in prompt
    stack.says("done")
    output = {"type": "custom_tool_call_output", "call_id": call.call_id, "output": "ok"}
    await ask(stack, [{"role": "user", "content": "q"}, call.to_dict(), output], tools=[PATCH])
    first, second = stack.calls()
    assert second.parent == first.call and stack.sent()[1][: first.prompt_tokens + len(first.output_ids)] == [
        *stack.sent()[0],
        *first.output_ids,
    ]


async def test_what_is_no_input_of_a_custom_tool_comes_back_as_it_stands(stack: Stack) -> None:
    stack.says(tool_call("patch", '{"input": 3}') + "\n" + tool_call("patch", '{"inp'))
    answer = await ask(stack, tools=[PATCH])
    assert [call.input for call in answer.output] == ['{"input": 3}', '{"inp']


async def test_custom_input_is_streamed_by_its_own_events(stack: Stack) -> None:
    stack.says(tool_call("patch", '{"input": "a b"}'))
    found = await events(stack, tools=[PATCH])
    by_kind = {event["type"]: event for event in found}
    assert by_kind["response.custom_tool_call_input.delta"]["delta"] == "a b"
    assert by_kind["response.custom_tool_call_input.done"]["input"] == "a b"
    assert by_kind["response.output_item.done"]["item"]["type"] == "custom_tool_call"


async def test_namespaces_come_back_as_they_were_given(stack: Stack) -> None:
    stack.says(tool_call("mail__send", '{"to": 1}') + "\n" + tool_call("mail__write", '{"input": "x"}'))
    answer = await ask(stack, tools=[MAIL, {**RUN, "name": "mail__send"}, {"type": "web_search"}, {"type": "tool_search"}])
    send, write = answer.output
    assert (send.type, send.namespace, send.name, send.arguments) == ("function_call", "mail", "send", '{"to": 1}')
    assert (write.type, write.namespace, write.name, write.input) == ("custom_tool_call", "mail", "write", "x")
    [record] = stack.calls()
    assert record.tools == 3
    assert record.notes[:2] == ("tool of type web_search left out", "tool of type tool_search left out")


async def test_a_cut_answer_is_incomplete(stack: Stack) -> None:
    ids = tuple(stack.rendering.tokenizer.encode("abc"))
    stack.says(Script(ids, finish_reason=FinishReason.LENGTH), Script(ids, finish_reason=FinishReason.LENGTH))
    answer = await ask(stack, max_output_tokens=3)
    assert answer.status == "incomplete" and answer.incomplete_details.reason == "max_output_tokens"
    assert answer.output[0].status == "incomplete" and answer.output_text == "abc"
    last = (await events(stack, "other", max_output_tokens=3))[-1]
    assert last["type"] == "response.incomplete" and last["response"]["status"] == "incomplete"
    assert [call.max_tokens for call in stack.calls()] == [3, 3]


async def test_a_cut_after_a_call_completes_the_response(stack: Stack) -> None:
    ids = tuple(stack.rendering.tokenizer.encode(tool_call("run", "{}") + "\n<tool_call>"))
    stack.says(Script(ids, finish_reason=FinishReason.LENGTH))
    found = await events(stack, tools=[RUN])
    assert found[-1]["type"] == "response.completed" and stack.calls()[0].finish is Finish.LENGTH


@pytest.mark.parametrize(
    "arguments", ['{"a":  1.10, "a": 12345678901234567890}', '{"a": "\\u0041\\/"}', '{"a": tru', "[1", '{"a": "\n"}']
)
async def test_arguments_are_kept_byte_for_byte(stack: Stack, arguments: str) -> None:
    stack.says(tool_call("run", arguments), "done")
    [call] = (await ask(stack, tools=[RUN])).output
    assert call.arguments == arguments
    history = [
        {"role": "user", "content": "q"},
        call.to_dict(),
        {"type": "function_call_output", "call_id": call.call_id, "output": "ok"},
    ]
    await ask(stack, history, tools=[RUN])
    first, second = stack.calls()
    assert second.parent == first.call and stack.prompts() == stack.sent()


async def test_a_silent_answer_is_an_empty_message(stack: Stack) -> None:
    stack.says("", "")
    answer = await ask(stack)
    [message] = answer.output
    assert message.type == "message" and message.content[0].text == ""
    assert [event["type"] for event in await events(stack, "other")][-2:] == ["response.output_item.done", "response.completed"]


async def test_a_stream_is_kept_alive_by_events(make_stack: MakeStack) -> None:
    stack = make_stack(cells=False, quiet_s=0.01, wait_limit_s=0.1)
    found = await events(stack)
    assert [event["type"] for event in found].count("response.in_progress") >= 3
    failed = found[-1]
    assert failed["type"] == "response.failed" and failed["response"]["status"] == "failed"
    assert failed["response"]["error"]["code"] == "rate_limit_exceeded"
    assert "try again in 5s" in failed["response"]["error"]["message"]

"""The Messages dialect as Anthropic's own client sees it: answers, streams, models, counts."""

from __future__ import annotations

import json
from typing import Any

from gyre_engine.events.calls import Continuity, Finish
from gyre_engine.sampling.port import FinishReason
from gyre_engine.sampling.scripted import Script
from tests.unit.proxy.conftest import MakeStack, Stack, tool_call
from tests.unit.proxy.messages_client import BASH, Agent, blocks, client, results

USER: list[Any] = [{"role": "user", "content": "q"}]
THINKS = "<think>\nlet me see\n</think>\n\non it\n"
TWO = tool_call("bash", '{"a": 1}') + "\n" + tool_call("bash", '{"a":  1.10}')


async def ask(stack: Stack, **fields: Any) -> Any:
    return await client(stack).messages.create(**{"model": "policy", "max_tokens": 999, "messages": USER, **fields})


async def events_of(stack: Stack, **fields: Any) -> list[Any]:
    return [event async for event in await ask(stack, stream=True, **fields)]


async def test_an_answer_has_its_blocks_and_a_record(stack: Stack) -> None:
    stack.says(THINKS + TWO)
    found = await ask(stack, tools=[BASH])
    assert [block.type for block in found.content] == ["thinking", "text", "tool_use", "tool_use"]
    assert (found.content[0].thinking, found.content[1].text) == ("let me see", "on it")
    assert [block.input for block in found.content[2:]] == [{"a": 1}, {"a": 1.1}]
    assert (found.role, found.model, found.stop_reason, found.stop_sequence) == ("assistant", "policy", "tool_use", None)
    [record] = stack.calls()
    assert (record.dialect, record.finish, record.max_tokens) == ("messages", Finish.TOOL_CALLS, 999)
    assert found.usage.input_tokens == record.prompt_tokens and found.usage.output_tokens == len(record.output_ids)


async def test_a_stream_has_every_event_in_the_order_of_the_api(stack: Stack) -> None:
    stack.says(THINKS + TWO, piece=1)
    events = await events_of(stack, tools=[BASH])
    assert blocks(events) == [
        ("thinking", "let me see"),
        ("text", "on it"),
        ("tool_use", '{"a": 1}'),
        ("tool_use", '{"a":  1.10}'),
    ]
    kinds = [event.type for event in events]
    assert events[0].message.usage.input_tokens == len(stack.sent()[0])
    assert kinds[0] == "message_start" and kinds[-2:] == ["message_delta", "message_stop"]
    end = events[-2]
    [record] = stack.calls()
    assert (end.delta.stop_reason, end.usage.output_tokens) == ("tool_use", len(record.output_ids))
    assert end.usage.input_tokens == record.prompt_tokens


async def test_the_clients_own_accumulator_gives_what_a_whole_answer_gives(stack: Stack) -> None:
    stack.says(THINKS + TWO, THINKS + TWO, piece=3)
    whole = await ask(stack, tools=[BASH])
    async with client(stack).messages.stream(model="policy", max_tokens=998, messages=USER, tools=[BASH]) as stream:  # type: ignore[list-item]
        streamed = await stream.get_final_message()
    without_ids = [[block.model_dump(exclude={"id"}) for block in found.content] for found in (whole, streamed)]
    assert without_ids[0] == without_ids[1] and whole.stop_reason == streamed.stop_reason
    assert prompt_tokens(whole.usage) == prompt_tokens(streamed.usage) == len(stack.sent()[0])
    assert whole.usage.output_tokens == streamed.usage.output_tokens


def prompt_tokens(usage: Any) -> int:
    """As the API counts: what was read from a cache stands apart."""
    return int(usage.input_tokens + usage.cache_creation_input_tokens + usage.cache_read_input_tokens)


async def test_every_event_has_its_event_line(stack: Stack) -> None:
    stack.says(THINKS + TWO)
    response = await client(stack).messages.with_raw_response.create(
        model="policy", max_tokens=9, messages=USER, stream=True, extra_query={"beta": "true"}
    )
    text = (await response.http_response.aread()).decode()
    for event in text.removesuffix("\n\n").split("\n\n"):
        first, second = event.split("\n")
        assert first.removeprefix("event: ") == json.loads(second.removeprefix("data: "))["type"]


async def test_a_long_answer_ends_with_max_tokens_and_an_empty_one_with_nothing(stack: Stack) -> None:
    stack.says(Script(tuple(stack.rendering.tokenizer.encode("abc")), finish_reason=FinishReason.LENGTH), "")
    cut = await ask(stack)
    assert (cut.stop_reason, cut.content[0].text) == ("max_tokens", "abc")
    empty = await ask(stack)
    assert (empty.stop_reason, empty.content) == ("end_turn", [])


async def test_the_next_turn_extends_the_sampled_ids(stack: Stack) -> None:
    stack.says(THINKS + TWO, "done")
    agent = Agent(stack)
    agent.history.append(results(await agent.turn(), "one", "two"))
    await agent.turn()
    first, second = stack.calls()
    assert second.continuity is Continuity.BRIDGED and second.parent == first.call
    sent = stack.sent()
    assert sent[1][: len(sent[0]) + len(first.output_ids)] == [*sent[0], *first.output_ids] and stack.prompts() == sent
    new = stack.rendering.tokenizer.decode(second.new_input_ids.tolist())
    assert new.count("<tool_response>") == 2 and new.index("one") < new.index("two")


async def test_models_are_listed_in_the_words_of_the_api(make_stack: MakeStack) -> None:
    stack = make_stack(models={"policy": "policy", "claude-x": "policy", "*": "policy"})
    page = await client(stack).models.list()
    assert [model.id for model in page.data] == ["policy", "claude-x"] and page.has_more is False
    assert [model.id async for model in client(stack).models.list()] == ["policy", "claude-x"]


async def test_counted_tokens_are_those_of_the_prompt(stack: Stack) -> None:
    stack.says(THINKS + TWO, "done")
    agent, asked = Agent(stack), client(stack).messages

    async def counted() -> int:
        found = await asked.count_tokens(model="policy", system="be good", messages=agent.history, tools=[BASH])  # type: ignore
        return found.input_tokens

    agent.fields["system"] = "be good"
    counts = [await counted()]
    assert stack.events() == []
    agent.history.append(results(await agent.turn(), "one", "two"))
    counts.append(await counted())
    await agent.turn()
    assert counts == [len(ids) for ids in stack.sent()] and len(stack.calls()) == 2


async def test_the_bearer_key_is_taken_too(stack: Stack) -> None:
    stack.says("ok")
    bearer = client(stack).with_options(default_headers={"authorization": f"Bearer {client(stack).api_key}", "x-api-key": ""})
    assert (await bearer.messages.create(model="policy", max_tokens=9, messages=USER)).content[0].text == "ok"  # type: ignore[union-attr]

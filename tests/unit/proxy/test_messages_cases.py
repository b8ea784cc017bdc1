"""Cases that neighbours' users reported, in the Messages dialect; others stand in test_cases_in_every_dialect.py."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from gyre_engine.log.memory import MemoryLog
from gyre_engine.sampling.scripted import Gate, Script, ScriptedEngine
from producers.proxy.dialects.messages import Messages
from producers.proxy.exchange import Channel, Piece
from tests.unit.proxy import conftest
from tests.unit.proxy.conftest import MakeStack, Stack, tool, tool_call, until, user
from tests.unit.proxy.messages_client import BASH, Agent, blocks, client, results
from tests.unit.proxy.test_proxy_cases import scope
from tests.unit.proxy.test_proxy_routes import receiver, sampled

USER: list[Any] = [{"role": "user", "content": "q"}]


async def events_of(stack: Stack, **fields: Any) -> list[Any]:
    asked = {"model": "policy", "max_tokens": 999, "messages": USER, **fields}
    return [event async for event in await client(stack).messages.create(**asked, stream=True)]


async def test_c01_each_delta_fits_the_open_block(stack: Stack) -> None:
    """C01: reasoning "ab" after blanks that become no text, then text "hi", an id a chunk."""
    stack.says("\n<think>\nab\n</think>\n\nhi", piece=1)
    events = await events_of(stack)
    assert blocks(events) == [("thinking", "ab"), ("text", "hi")]
    kinds = [event.type for event in events]
    assert kinds[-2:] == ["message_delta", "message_stop"] and events[-2].delta.stop_reason == "end_turn"
    assert kinds.count("message_delta") == kinds.count("message_stop") == kinds.count("message_start") == 1
    assert kinds.count("content_block_start") == kinds.count("content_block_stop") == 2


def test_c01_an_empty_piece_opens_no_block() -> None:
    """C01: the empty text piece itself, before the reasoning."""
    ask = Messages().parse(json.dumps({"model": "m", "messages": USER}).encode())
    stream = Messages().stream(ask, "c", 0)
    assert stream.delta(Piece(Channel.TEXT, "")) == b""
    assert b'"index":0,"content_block":{"type":"thinking"' in stream.delta(Piece(Channel.REASONING, "ab"))
    after = stream.delta(Piece(Channel.TEXT, "hi"))
    assert after.index(b'"content_block_stop","index":0') < after.index(b'"index":1,"content_block":{"type":"text"')


async def test_c08_the_same_history_makes_the_same_prompt_as_in_chat(stack: Stack) -> None:
    """C08: with a system text, a tool call and its result."""
    stack.says("ok", "ok")
    call = {"type": "tool_use", "id": "a", "name": "bash", "input": {"cmd": "ls", "é": 1}}
    answer = {"type": "tool_result", "tool_use_id": "a", "content": [{"type": "text", "text": "out"}]}
    agent = Agent(stack, {"tools": [BASH], "system": "You help."}, [{"role": "user", "content": "go"}])
    agent.history += [{"role": "assistant", "content": [{"type": "text", "text": "I look."}, call]}]
    agent.history += [{"role": "user", "content": [answer, {"type": "text", "text": "and?"}]}]
    await agent.turn()
    function = {"id": "a", "type": "function", "function": {"name": "bash", "arguments": '{"cmd": "ls", "é": 1}'}}
    chat = [{"role": "system", "content": "You help."}, user("go")]
    chat += [{"role": "assistant", "content": "I look.", "tool_calls": [function]}, tool("a", "out"), user("and?")]
    await stack.say(chat, execution="g.1.0", tools=[conftest.BASH])
    one, other = stack.sent()
    assert one == other and stack.calls()[0].shape == stack.calls()[1].shape


@pytest.mark.parametrize("passed", [0, 5])
async def test_c11_a_client_that_leaves_aborts_its_call(make_stack: MakeStack, passed: int) -> None:
    """C11: (a) during prefill, (b) after 5 tokens."""
    gate = Gate()
    stack = make_stack(cells=False)
    engine = stack.cell("a", engine=ScriptedEngine([Script(tuple(range(10, 3010)), piece=1)], gate=gate))
    reader = Reader(stack, max_tokens=3000)
    await until(lambda: bool(engine.requests))
    await gate.release(passed)
    await until(lambda: sampled(stack) == passed)
    reader.gone.set()
    await asyncio.wait_for(reader.served, 1)
    await asyncio.wait_for(until(lambda: bool(engine.aborted)), 1)
    await until(lambda: bool(stack.calls()))
    [record] = stack.calls()
    assert record.finish.value == "cancelled" and record.output_ids.tolist() == list(range(10, 10 + passed))
    assert (await engine.stats()).running == 0 and engine.aborted == [engine.requests[0].rid]


class Reader:
    """A client of a stream that sees each piece as it is sent, and may leave."""

    def __init__(self, stack: Stack, **fields: Any) -> None:
        self.gone = asyncio.Event()
        self.seen = b""
        body = json.dumps({"model": "policy", "messages": USER, "stream": True, **fields}).encode()
        at = {**scope("g.0.0", body), "path": "/v1/messages", "raw_path": b"/v1/messages"}
        self.served = asyncio.ensure_future(stack.app(at, receiver(body, self.gone), self._send))

    async def _send(self, message: Any) -> None:
        self.seen += message.get("body", b"")


async def test_c14_what_was_sampled_is_never_encoded_again(stack: Stack) -> None:
    """C14: as in the chat dialect."""
    tokenizer, end = stack.rendering.tokenizer, stack.rendering.stop_ids[0]
    split = (*tokenizer.encode("hel"), *tokenizer.encode("lo"), end)
    stack.says(Script(split), "yes")
    agent = Agent(stack)
    assert (await agent.turn()).content[0].text == "hello"
    agent.history[-1] = {"role": "assistant", "content": "hello"}
    agent.history.append({"role": "user", "content": "again"})
    await agent.turn()
    first, second = stack.sent()
    assert second[: len(first) + len(split)] == [*first, *split]


async def test_c18_ids_are_unique_and_restore_their_own_payload(stack: Stack) -> None:
    """C18: as in the chat dialect."""
    stack.says(tool_call("exec", '"ls"'), tool_call("exec", '{"cmd":   "pwd"}'), "end")
    agent = Agent(stack)
    for _ in range(2):
        agent.history.append(results(await agent.turn(), "out"))
    used = [block for message in agent.history if message["role"] == "assistant" for block in message["content"]]
    assert len({block["id"] for block in used}) == 2
    for block in used:
        block["input"] = {"re": "written"}
    await agent.turn()
    prompt = stack.rendering.tokenizer.decode(stack.sent()[2])
    assert prompt.index('"arguments": "ls"') < prompt.index('"arguments": {"cmd":   "pwd"}') and "written" not in prompt


async def test_c26_the_same_body_streamed_or_not_is_joined_while_it_runs(make_stack: MakeStack) -> None:
    """C26: (a) a retry that is not streamed joins the stream that still runs."""
    gate = Gate()
    stack = make_stack(cells=False)
    engine = stack.cell("a", engine=ScriptedEngine(lambda _: stack.scripts.pop(0), gate=gate))
    stack.says("one", "two")
    streamed = asyncio.ensure_future(events_of(stack))
    await until(lambda: bool(engine.requests))
    whole = asyncio.ensure_future(client(stack).messages.create(model="policy", max_tokens=999, messages=USER))
    await until(lambda: stack.service.counts["joined"] == 1)
    await gate.open()
    assert blocks(await streamed) == [("text", (await whole).content[0].text)] == [("text", "one")]  # type: ignore[union-attr]
    assert len(stack.calls()) == len(engine.requests) == 1


async def test_a_tool_call_is_streamed_only_once_its_record_stands(make_stack: MakeStack) -> None:
    gate, log = Gate(), MemoryLog()
    stack = make_stack(log=log, cells=False)
    engine = stack.cell("a", engine=ScriptedEngine(lambda _: stack.scripts.pop(0), gate=gate))
    stack.says("I look." + tool_call("bash", '{"a": 1}'), piece=1)
    reader = Reader(stack, tools=[BASH])
    await until(lambda: bool(engine.requests) and bool(stack.events()))
    log.store.hold()
    await gate.open()
    await until(lambda: bool(log.store._held) and reader.seen.count(b'"text_delta"') == len("Ilook."))
    assert b"tool_use" not in reader.seen and b"message_delta" not in reader.seen
    log.store.release()
    await reader.served
    assert reader.seen.index(b"tool_use") < reader.seen.index(b"message_delta") and len(stack.calls()) == 1

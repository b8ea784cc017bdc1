"""A proxy that starts again goes on where the log stands; while the log is away nothing is answered that was not recorded."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from typing import Any

from gyre_engine.events.calls import Continuity, ExecutionClosed, ModelCall, ProxyOwns
from gyre_engine.log.memory import MemoryLog, MemoryStore
from producers.proxy import outbox
from producers.proxy.rendering import Rendering
from producers.proxy.restore import rebuild, take_over
from tests.unit.proxy.conftest import BASH, MakeStack, Stack, tool, tool_call, until, user


def restarted(make_stack: MakeStack, before: Stack) -> Stack:
    """A second proxy on the same log."""
    log = MemoryLog(before.log.store)
    past = take_over(log, "proxy-2")
    stack = make_stack(log=log)
    stack.service.closed.update(past.closed)
    stack.service.executions.update({name: rebuild(name, past.open, stack.rendering) for name in past.open.epochs})
    return stack


async def test_the_turn_after_a_restart_is_bridged(make_stack: MakeStack) -> None:
    one = make_stack()
    one.says("<think>\nhm\n</think>\n\n" + tool_call("bash", '{"a":  1}'), "side")
    message = await one.say([user("go")], tools=[BASH])
    await one.say([user("title")])
    two = restarted(make_stack, one)
    two.says("done")
    call = message["tool_calls"][0]
    await two.say([user("go"), message, tool(call["id"], "out")], tools=[BASH])
    first, _, third = two.calls()
    assert third.continuity is Continuity.BRIDGED and third.parent == first.call
    assert third.owner_epoch == first.owner_epoch + 1 and third.number == 2
    assert two.prompts()[2] == two.sent()[0]
    assert [event.TYPE for event in two.events("tool-events")] == ["tool-called", "tool-returned"]


async def test_a_predecessors_late_record_counts_for_nothing(make_stack: MakeStack) -> None:
    one = make_stack()
    one.says("a", "late", "b")
    message = await one.say([user("q")])
    two = restarted(make_stack, one)
    await one.say([user("q"), message, user("more")])
    third = restarted(make_stack, two)
    [execution] = third.service.executions.values()
    assert execution.calls == 1 and execution.epoch == 3


async def test_what_was_closed_stays_closed(make_stack: MakeStack) -> None:
    one = make_stack()
    one.says("a")
    await one.say([user("q")])
    closed = (await one.internal("POST", "/internal/executions/g.0.0/close")).json()
    two = restarted(make_stack, one)
    assert (await two.chat([user("q")])).status_code == 403
    assert (await two.internal("POST", "/internal/executions/g.0.0/close")).json() == closed
    assert sum(isinstance(event, ExecutionClosed) for event in two.events()) == 1


async def test_an_execution_without_calls_is_closed_with_none(stack: Stack) -> None:
    assert (await stack.internal("POST", "/internal/executions/g.9.0/close")).json() == {"held_us": 0, "calls": 0, "tokens": 0}
    owns, closed = stack.events()
    assert isinstance(owns, ProxyOwns) and isinstance(closed, ExecutionClosed) and closed.calls == 0 and closed.last_call is None


async def test_nothing_that_lets_a_client_act_precedes_the_record(make_stack: MakeStack) -> None:
    store = MemoryStore()
    stack = make_stack(log=MemoryLog(store))
    stack.says("warm", "text\n" + tool_call("bash", "{}"))
    await stack.say([user("first")])
    store.hold()
    sent: list[bytes] = []
    call = asyncio.ensure_future(streamed(stack, sent))
    await until(lambda: any(stack.service.open["g.0.0"]))
    await until(lambda: any(c.sampled.ids for c in stack.service.open["g.0.0"]))
    for _ in range(50):
        await asyncio.sleep(0)
    assert not any(b"tool_calls" in data or b"[DONE]" in data or b'finish_reason":"' in data for data in sent)
    store.release()
    await call
    assert b"tool_calls" in b"".join(sent) and b"[DONE]" in b"".join(sent)


async def streamed(stack: Stack, sent: list[bytes]) -> None:
    import json

    from tests.unit.proxy.test_proxy_cases import scope
    from tests.unit.proxy.test_proxy_routes import receiver

    body = json.dumps({"model": "policy", "messages": [user("second")], "tools": [BASH], "stream": True}).encode()

    async def send(message: Any) -> None:
        sent.append(message.get("body", b""))

    await stack.app(scope("g.0.0", body), receiver(body, asyncio.Event()), send)


async def test_while_the_log_is_away_calls_wait_and_are_told_to_ask_again(make_stack: MakeStack, monkeypatch: Any) -> None:
    monkeypatch.setattr(outbox, "PATIENCE_S", 0.01)
    store = MemoryStore()
    stack = make_stack(log=MemoryLog(store), wait_limit_s=0.1)
    stack.says("kept", "new")
    store.hold()
    first = await stack.chat([user("q")])
    assert first.status_code == 503 and first.json()["error"]["code"] == "log_unavailable" and "retry-after" in first.headers
    assert (await stack.chat([user("other")])).status_code == 503
    assert (await stack.client.get("/healthz")).status_code == 503
    store.release()
    await until(lambda: not stack.service.desk.outbox.away)
    assert (await stack.say([user("q")]))["content"] == "kept"
    assert len(stack.calls()) == 1
    assert (await stack.client.get("/healthz")).json()["status"] == "ok"


async def test_an_agent_that_waits_for_the_log_is_held_up_by_the_proxy(make_stack: MakeStack, monkeypatch: Any) -> None:
    """The two clocks count it while it lasts, before there is a call, and the record keeps it."""
    monkeypatch.setattr(outbox, "PATIENCE_S", 0.01)
    store = MemoryStore()
    stack = make_stack(log=MemoryLog(store))
    stack.says("one", "two")
    store.hold()
    first = asyncio.ensure_future(stack.chat([user("q")], "g.0.0"))
    await until(lambda: stack.service.desk.outbox.away)
    second = asyncio.ensure_future(stack.chat([user("q")], "g.1.0"))
    await until(lambda: stack.service.held_us("g.1.0") > 20_000)
    assert "g.1.0" not in stack.service.executions
    store.release()
    assert [(await answer).status_code for answer in (first, second)] == [200, 200]
    [waited] = [call.queued_us for call in stack.calls() if call.execution == "g.1.0"]
    assert waited > 20_000
    closed = (await stack.internal("POST", "/internal/executions/g.1.0/close")).json()
    assert closed["held_us"] == waited and stack.service._arrivals == {}


async def test_a_record_that_was_lost_is_put_again_before_the_next(make_stack: MakeStack, monkeypatch: Any) -> None:
    monkeypatch.setattr(outbox, "PAUSE_S", 0.0)
    store = MemoryStore()
    stack = make_stack(log=MemoryLog(store))
    stack.says("warm", "a", "b")
    await stack.say([user("first")])
    store.hold()
    answers = [asyncio.ensure_future(stack.say([user(text)])) for text in ("q", "r")]
    await until(lambda: len([c for c in stack.service.open["g.0.0"] if c.sampled.ids]) == 2)
    store.release(lost=True)
    assert sorted([(await answer)["content"] for answer in answers]) == ["a", "b"]
    assert [call.number for call in stack.calls()] == [0, 1, 2]


async def test_closing_waits_for_the_records_of_aborted_calls(make_stack: MakeStack) -> None:
    store = MemoryStore()
    stack = make_stack(log=MemoryLog(store))
    stack.says("warm", "a")
    await stack.say([user("first")])
    store.hold()
    answer = asyncio.ensure_future(stack.chat([user("q")]))
    await until(lambda: any(c.sampled.ids for c in stack.service.open["g.0.0"]))
    closing = asyncio.ensure_future(stack.internal("POST", "/internal/executions/g.0.0/close"))
    await until(lambda: all(call.cancel.is_set() for call in stack.service.open["g.0.0"]))
    store.release()
    assert (await closing).json()["calls"] == 2 and (await answer).status_code == 200
    *_, last = stack.events()
    assert isinstance(last, ExecutionClosed) and last.calls == 2
    assert last.last_call == [event for event in stack.events() if isinstance(event, ModelCall)][-1].call


def test_the_chain_in_the_record_is_what_the_next_request_hashes_to(rendering: Rendering) -> None:
    from gyre_engine.trees.conversation import Author, Conversation, Message, ToolCall, link

    history = [Message(Author.USER, "q"), Message(Author.ASSISTANT, " a ", "thought", (ToolCall("c1", "t", '{"a": 1}'),))]
    again = [Message(Author.USER, "q"), Message(Author.ASSISTANT, "<think>thought</think>a", "", (ToolCall("c1", "t", "{}"),))]
    said = Conversation()
    recorded = link(link(b"", history[0]), history[1])
    said.learn("call", recorded, ["c1"])
    assert said.links(b"", history)[1] == said.links(b"", again)[1] == recorded
    assert said.links(b"x", history)[1] != recorded


def test_the_proxy_loads_neither_torch_nor_transformers() -> None:
    code = "import sys, producers.proxy.process; print(sorted({'torch', 'transformers', 'megatron', 'faust'} & set(sys.modules)))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"

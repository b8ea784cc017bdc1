"""Streams that end with an error, and twins that share one."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import orjson

from gyre_engine.events.calls import Finish, Role
from gyre_engine.sampling.scripted import Gate, Script, ScriptedEngine
from gyre_engine.trees.facts import of_call
from gyre_engine.trees.roles import infer_roles
from producers.proxy.call import Call
from producers.proxy.dialects.chat import Chat
from producers.proxy.shared_call import SharedCall
from tests.unit.proxy.conftest import MakeStack, Stack, until, user
from tests.unit.proxy.test_proxy_cases import deltas, scope


async def test_a_stream_without_a_cell_ends_with_an_error_and_its_terminal_event(make_stack: MakeStack) -> None:
    stack = make_stack(cells=False, quiet_s=0.01, wait_limit_s=0.1)
    response = await stack.chat([user("q")], stream=True)
    assert response.status_code == 200 and "no_sampling_cell" in response.text and response.text.endswith("data: [DONE]\n\n")


async def test_twins_that_stream_get_the_same_deltas(make_stack: MakeStack) -> None:
    gate = Gate()
    stack = make_stack(cells=False)
    engine = ScriptedEngine([script(stack, "one two")], gate=gate)
    stack.cell("a", engine=engine)

    def ask() -> asyncio.Future[httpx.Response]:
        return asyncio.ensure_future(stack.chat([user("q")], stream=True))

    first = ask()
    await until(lambda: bool(engine.requests))
    await gate.release(3)
    second = ask()
    await until(lambda: stack.service.counts["joined"] == 1)
    await gate.open()
    one, two = (await first).text, (await second).text
    assert "".join(deltas(one)) == "".join(deltas(two)) == "one two" and len(stack.calls()) == 1


async def test_who_leaves_and_asks_again_at_once_with_another_limit_has_its_first_answer_abandoned(make_stack: MakeStack) -> None:
    """The new prompt is made when the left call's record stands: both are known as one prompt sampled twice."""
    gate, stack = Gate(), make_stack(cells=False)
    engine = stack.cell("a", engine=ScriptedEngine(lambda _: stack.scripts.pop(0), gate=gate))
    stack.says("first answer", piece=1)
    stack.says("second", "third")
    first, leaves = body(64), asyncio.Event()
    unread = [first]
    again: list[asyncio.Task[SharedCall]] = []

    async def receive() -> dict[str, Any]:
        if unread:
            return {"type": "http.request", "body": unread.pop(), "more_body": False}
        await leaves.wait()
        again.append(asyncio.create_task(stack.service.open_call("g.0.0", Chat().parse(body(32)))))
        return {"type": "http.disconnect"}

    async def send(_: Any) -> None:
        pass

    asking = asyncio.ensure_future(stack.app(scope("g.0.0", first), receive, send))
    await until(lambda: bool(engine.requests))
    (left,) = stack.service.open["g.0.0"]
    await gate.release(5)
    await until(lambda: isinstance(left, Call) and len(left.sampled.ids) >= 3)
    leaves.set()
    await asking
    await until(lambda: len(engine.requests) == 2)
    await gate.open()
    second = await again[0]
    await until(lambda: second.outcome is not None)
    await stack.say([user("q"), {"role": "assistant", "content": "second"}, user("next")])
    one, two, three = stack.calls()
    assert one.finish is Finish.CANCELLED and (two.parent, two.prefix_len, len(two.new_input_ids)) == (
        one.call,
        one.prompt_tokens,
        0,
    )
    assert infer_roles([of_call(call) for call in (one, two, three)]) == (Role.ABANDONED, Role.MAIN, Role.MAIN)


def body(max_tokens: int) -> bytes:
    return orjson.dumps({"model": "policy", "messages": [user("q")], "max_tokens": max_tokens})


def script(stack: Stack, text: str) -> Script:
    return Script((*stack.rendering.tokenizer.encode(text), stack.rendering.stop_ids[0]), piece=1)

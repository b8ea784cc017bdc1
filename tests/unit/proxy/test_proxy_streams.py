"""Streams that end with an error, and twins that share one."""

from __future__ import annotations

import asyncio

import httpx

from gyre_engine.sampling.scripted import Gate, Script, ScriptedEngine
from tests.unit.proxy.conftest import MakeStack, Stack, until, user
from tests.unit.proxy.test_proxy_cases import deltas


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


def script(stack: Stack, text: str) -> Script:
    return Script((*stack.rendering.tokenizer.encode(text), stack.rendering.stop_ids[0]), piece=1)

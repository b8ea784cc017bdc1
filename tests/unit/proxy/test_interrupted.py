"""`schedule.interrupted = "retry"`: a call that its engine did not finish begins anew, unless a client has had text of it."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import httpx
import pytest

from gyre_engine.events.calls import Finish
from gyre_engine.events.cells import CellRole, Drained
from gyre_engine.sampling.port import Chunk, EngineFailed, GenerateRequest
from gyre_engine.sampling.scripted import Gate, Script, ScriptedEngine
from producers.proxy import generation
from producers.proxy.call import Call
from producers.proxy.generation import Sampled
from tests.unit.proxy.conftest import BASH, MakeStack, Stack, tool_call, until, user
from tests.unit.proxy.test_proxy_cases import deltas, trees_of
from tests.unit.proxy.test_proxy_routes import sampled, switch


def answer(stack: Stack, text: str) -> Script:
    return Script((*stack.rendering.tokenizer.encode(text), stack.rendering.stop_ids[0]), piece=1)


class Switched:
    """A call of which cell `core` has sampled five tokens before it leaves sampling, with nobody there to go on."""

    def __init__(self, stack: Stack, text: str, engine: type[ScriptedEngine] = ScriptedEngine) -> None:
        self.stack, self.gate, self.whole, self.engine = stack, Gate(), answer(stack, text), engine
        self.core = stack.cell("core", 0, engine=engine([self.whole], version="3", gate=self.gate))

    async def begin(self, **fields: Any) -> asyncio.Future[httpx.Response]:
        asked = asyncio.ensure_future(self.stack.chat([user("q")], **fields))
        await until(lambda: bool(self.core.requests))
        await self.gate.release(5)
        await until(lambda: sampled(self.stack) == 5)
        return asked

    async def leave(self) -> None:
        self.stack.service.desk.router.apply([switch("core", CellRole.TRAINING, 0)])
        await self.core.pause(abort=True)
        await until(lambda: bool(self.core.aborted))
        nobody_moves = Drained(
            cell="core", incarnation="core-1", command_epoch=1, command_number=0, weight_version=3, requests=()
        )  # fmt: skip
        self.stack.service.desk.router.apply([nobody_moves])

    def goes_on(self) -> ScriptedEngine:
        """Another cell, whose model says the rest of what `core` began."""
        prompt = len(self.core.requests[0].input_ids)

        def rest(request: GenerateRequest) -> Script:
            return Script(self.whole.output_ids[len(request.input_ids) - prompt :], piece=1)

        return self.stack.cell("b", 1, engine=self.engine(rest, version="4"))

    def says(self, text: str) -> ScriptedEngine:
        """Another cell, whose model says something else, all at once."""
        script = replace(answer(self.stack, text), piece=None)
        return self.stack.cell("b", 1, engine=ScriptedEngine([script], version="4"))

    @property
    def call(self) -> Call:
        [call] = self.stack.service.open["g.0.0"]
        assert isinstance(call, Call)
        return call


async def test_a_call_that_nobody_has_seen_begins_anew_with_its_whole_budget(make_stack: MakeStack) -> None:
    """5 tokens thrown away, 7 (six letters and the stop) delivered: 7 / 12 of what was sampled stands in the tree."""
    stack = make_stack(cells=False, retry=True)
    switched = Switched(stack, "first answer")
    asked = await switched.begin()
    await switched.leave()
    other = switched.says("second")
    body = (await asked).json()
    first, again = switched.core.requests[0], other.requests[0]
    assert (list(again.input_ids), again.params) == (list(first.input_ids), first.params) and again.rid != first.rid
    [record] = stack.calls()
    assert body["choices"][0]["message"]["content"] == "second" and body["usage"]["completion_tokens"] == 7
    assert (len(record.output_ids), len(record.logprobs), record.discarded_tokens, record.engine_calls) == (7, 7, 5, 2)
    assert [(span.start, span.version, span.cell) for span in record.weight_spans] == [(0, 4, "b")]
    [tree] = trees_of(stack)
    assert (tree.sampled_tokens, tree.tree_tokens, tree.delivered) == (12, 7, 7 / 12)


async def test_without_retry_it_goes_on_and_nothing_is_discarded(make_stack: MakeStack) -> None:
    stack = make_stack(cells=False)
    switched = Switched(stack, "first answer")
    asked = await switched.begin()
    await switched.leave()
    switched.goes_on()
    assert (await asked).json()["choices"][0]["message"]["content"] == "first answer"
    [record] = stack.calls()
    assert (record.discarded_tokens, trees_of(stack)[0].delivered) == (0, 1.0)


async def test_what_a_streaming_client_has_had_is_gone_on_from(make_stack: MakeStack) -> None:
    stack = make_stack(cells=False, retry=True)
    switched = Switched(stack, "first answer")
    asked = await switched.begin(stream=True)
    await until(lambda: switched.call.shown)
    await switched.leave()
    switched.goes_on()
    assert "".join(deltas((await asked).text)) == "first answer"
    [record] = stack.calls()
    assert record.output_ids.tolist() == list(switched.whole.output_ids) and record.discarded_tokens == 0
    assert [(span.start, span.cell) for span in record.weight_spans] == [(0, "core"), (5, "b")]


async def test_a_stream_that_has_shown_no_text_begins_anew(make_stack: MakeStack) -> None:
    """The tokens of a tool call are held until the call is whole."""
    stack = make_stack(cells=False, retry=True, quiet_s=0.01)
    switched = Switched(stack, tool_call("bash", "{}"))
    asked = await switched.begin(stream=True, tools=[BASH])
    await switched.leave()
    switched.says("no tool")
    text = (await asked).text
    assert "".join(deltas(text)) == "no tool" and "tool_calls" not in text
    assert [record.discarded_tokens for record in stack.calls()] == [5]


async def test_a_twin_that_comes_to_stream_later_gets_the_new_text_alone(make_stack: MakeStack) -> None:
    """The first client waits for the whole answer: nothing of the thrown away text was handed to anybody."""
    stack = make_stack(cells=False, retry=True)
    switched = Switched(stack, "first answer")
    asked = await switched.begin()
    assert switched.call.heard
    await switched.leave()
    await until(lambda: switched.call.sampled.discarded == 5)
    twin = asyncio.ensure_future(stack.chat([user("q")], stream=True))
    await until(lambda: stack.service.counts["joined"] == 1)
    switched.says("second")
    assert "".join(deltas((await twin).text)) == (await asked).json()["choices"][0]["message"]["content"] == "second"


async def test_a_lost_engine_is_an_interruption_too(make_stack: MakeStack) -> None:
    stack = make_stack(cells=False, retry=True)
    stack.cell("b", 1, engine=ScriptedEngine([Script((5, 6), error=EngineFailed("broke"))]))
    stack.cell("a", 0)
    stack.says("ok")
    assert (await stack.say([user("q")]))["content"] == "ok"
    [record] = stack.calls()
    assert record.discarded_tokens == 2 and [span.cell for span in record.weight_spans] == ["a"]


async def test_a_call_begins_anew_three_times_and_then_goes_on(make_stack: MakeStack) -> None:
    """Five tokens each time; the fourth interruption keeps its five, so that switches that come fast end somewhere."""
    stack, gate = make_stack(cells=False, retry=True), Gate()
    whole = answer(stack, "long answer")

    def play(request: GenerateRequest) -> Script:
        return Script(whole.output_ids[len(request.input_ids) - len(engine.requests[0].input_ids) :], piece=1)

    engine = stack.cell("a", engine=ScriptedEngine(play, gate=gate))
    asked = asyncio.ensure_future(stack.chat([user("q")]))
    await gate.release(5)
    for before in range(4):
        await until(lambda before=before: len(engine.requests) == before + 1 and sampled(stack) == 5)  # type: ignore[misc]
        await engine.abort(None)
    await gate.open()
    assert (await asked).json()["choices"][0]["message"]["content"] == "long answer"
    [record] = stack.calls()
    assert (record.discarded_tokens, record.output_ids.tolist(), record.engine_calls) == (15, list(whole.output_ids), 5)
    lengths = [len(request.input_ids) - len(engine.requests[0].input_ids) for request in engine.requests]
    assert lengths == [0, 0, 0, 0, 5]


async def test_what_was_thrown_away_is_counted_though_the_call_is_cancelled(make_stack: MakeStack) -> None:
    stack = make_stack(cells=False, retry=True)
    switched = Switched(stack, "first answer")
    asked = await switched.begin()
    await switched.leave()
    await until(lambda: switched.call.sampled.discarded == 5)
    await stack.service.close("g.0.0")
    await asked
    [record] = stack.calls()
    assert (record.finish, len(record.output_ids), record.discarded_tokens) == (Finish.CANCELLED, 0, 5)


async def test_what_was_thrown_away_is_counted_though_no_cell_comes_back(make_stack: MakeStack) -> None:
    stack = make_stack(cells=False, retry=True, wait_limit_s=0.05)
    switched = Switched(stack, "first answer")
    asked = await switched.begin()
    await switched.leave()
    assert (await asked).status_code == 503
    [record] = stack.calls()
    assert (record.finish, len(record.output_ids), record.discarded_tokens) == (Finish.ERROR, 0, 5)


def test_the_time_of_what_was_thrown_away_is_time_that_the_agent_was_held_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Asked at 1 ms, served from 3 ms, five tokens by 10 ms, interrupted; served again from 12 ms: 11 ms, and 7 us before."""
    clock = [0]
    monkeypatch.setattr(generation.time, "monotonic_ns", lambda: clock[0] * 1_000_000)
    found = Sampled(held_us=7)
    for now, step in (
        (1, found.hold),
        (3, found.serve),
        (10, found.hold),
        (10, found.begin_anew),
        (12, lambda: found.take(Chunk((1,), (-1.0,), "4"), "b")),
    ):
        clock[0] = now
        step()
    clock[0] = 20
    assert found.held_so_far == 11_007 and found.ids == [1]

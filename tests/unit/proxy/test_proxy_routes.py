"""Routes: a pure fold and a pure choice; and calls that move between cells without the agent seeing it."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from gyre_engine.events import Event
from gyre_engine.events.cells import CellHealth, CellRole, CellStarted, RoleChanged, SchedulerElected, SwitchRole
from gyre_engine.sampling.port import EngineFailed
from gyre_engine.sampling.scripted import Gate, Script, ScriptedEngine
from producers.proxy.routes import Routes, choose, observe
from tests.unit.proxy.conftest import MakeStack, Stack, started, until, user
from tests.unit.proxy.test_proxy_cases import scope


def folded(*events: Event) -> Routes:
    routes = Routes()
    for event in events:
        routes = observe(routes, event)
    return routes


def switch(cell: str, to: CellRole, number: int, epoch: int = 1) -> SwitchRole:
    return SwitchRole(epoch=epoch, number=number, cell=cell, to=to, reason="", water_level=0, sampling_capacity=0)


def changed(cell: str, role: CellRole, number: int, epoch: int = 1) -> RoleChanged:
    return RoleChanged(cell=cell, incarnation=f"{cell}-1", role=role, command_epoch=epoch, command_number=number)


def names(routes: Routes) -> list[str]:
    return [cell.cell for cell in routes.sampling]


CELLS = [started("core", 0), started("b", 1), started("c", 2), started("alone", -1)]


def test_the_cells_that_sample_longest_come_first() -> None:
    assert names(folded(*CELLS)) == ["alone", "c", "b", "core"]


def test_a_cell_that_is_told_to_train_gets_no_call_before_it_answers() -> None:
    told = folded(*CELLS, switch("core", CellRole.TRAINING, 0))
    assert names(told) == ["alone", "c", "b"]
    there = (switch("core", CellRole.TRAINING, 0), changed("core", CellRole.TRAINING, 0))
    back = folded(*CELLS, *there, switch("core", CellRole.SAMPLING, 1))
    assert names(back) == ["alone", "c", "b"]
    assert names(observe(back, changed("core", CellRole.SAMPLING, 1))) == ["alone", "c", "b", "core"]


def test_a_stale_scheduler_routes_nothing() -> None:
    routes = folded(*CELLS, SchedulerElected(epoch=2, holder="s"), switch("core", CellRole.TRAINING, 5, epoch=1))
    assert "core" in names(routes)


def test_a_report_of_an_earlier_incarnation_counts_for_nothing() -> None:
    again = CellStarted(
        cell="b",
        position=1,
        incarnation="b-2",
        engine="scripted",
        engine_url="scripted://b",
        capacity=8,
        role=CellRole.SAMPLING,
        weight_version=0,
    )
    routes = folded(*CELLS, again, CellHealth(cell="b", incarnation="b-1", healthy=False))
    assert "b" in names(routes)
    assert "b" not in names(observe(routes, CellHealth(cell="b", incarnation="b-2", healthy=False)))


@settings(deadline=None)
@given(
    st.permutations(
        [
            switch("core", CellRole.TRAINING, 0),
            switch("core", CellRole.SAMPLING, 1),
            changed("core", CellRole.TRAINING, 0),
            changed("core", CellRole.SAMPLING, 1),
        ]
    )
)
def test_the_end_is_the_same_however_the_two_topics_interleave(events: list[Event]) -> None:
    commands = [event for event in events if isinstance(event, SwitchRole)]
    reports = [event for event in events if isinstance(event, RoleChanged)]
    if [event.number for event in commands] != [0, 1] or [event.command_number for event in reports] != [0, 1]:
        return
    assert names(folded(*CELLS, *events)) == ["alone", "c", "b", "core"]


def test_an_execution_stays_where_its_prefix_is_while_there_is_room() -> None:
    routes = folded(*CELLS)
    assert choose(routes, {"b": 7}, sticky="b", moved=False).cell == "b"  # type: ignore[union-attr]
    assert choose(routes, {"b": 8}, sticky="b", moved=False).cell == "alone"  # type: ignore[union-attr]


def test_a_new_execution_goes_to_the_least_loaded_and_a_moved_one_to_the_most_lasting() -> None:
    routes, load = folded(*CELLS), {"alone": 3, "c": 2, "b": 1, "core": 2}
    assert choose(routes, load, sticky=None, moved=False).cell == "b"  # type: ignore[union-attr]
    assert choose(routes, load, sticky="core", moved=True).cell == "alone"  # type: ignore[union-attr]
    assert choose(routes, dict.fromkeys(load, 8), sticky=None, moved=False) is None


async def test_a_switch_moves_a_call_and_the_agent_sees_one_answer(make_stack: MakeStack) -> None:
    gate = Gate()
    stack = make_stack(cells=False)
    full = Script(tuple(range(10, 30)), piece=1)

    def rest(request: Any) -> Script:
        done = len(request.input_ids) - len(core.requests[0].input_ids)
        return Script(full.output_ids[done:], piece=1)

    core = stack.cell("core", 0, engine=ScriptedEngine([full], version="3", gate=gate))
    answer = asyncio.ensure_future(stack.chat([user("q")]))
    await gate.release(5)
    await until(lambda: sampled(stack) == 5)
    stack.service.desk.router.apply([switch("core", CellRole.TRAINING, 0)])
    await core.pause(abort=True)
    await until(lambda: stack.service.held_us("g.0.0") > 0)
    other = stack.cell("b", 1, engine=ScriptedEngine(rest, version="4"))
    body = (await answer).json()
    [record] = stack.calls()
    assert record.output_ids.tolist() == list(full.output_ids) and body["usage"]["completion_tokens"] == 20
    assert [(span.start, span.version, span.cell) for span in record.weight_spans] == [(0, 3, "core"), (5, 4, "b")]
    assert record.engine_calls == 2 and record.queued_us > 0
    assert other.requests[0].params.max_tokens == core.requests[0].params.max_tokens - 5
    assert list(other.requests[0].input_ids) == [*core.requests[0].input_ids, *range(10, 15)]


def sampled(stack: Stack) -> int:
    return sum(len(call.sampled.ids) for calls in stack.service.open.values() for call in calls)


async def test_an_engine_that_does_not_serve_or_fails_is_passed_over(make_stack: MakeStack) -> None:
    stack = make_stack(cells=False)
    paused = stack.cell("c", 2)
    await paused.pause(abort=True)
    stack.cell("b", 1, engine=ScriptedEngine([Script((5, 6), error=EngineFailed("broke"))]))
    stack.cell("a", 0)
    stack.says("ok")
    response = await stack.chat([user("q")])
    assert response.status_code == 200
    [record] = stack.calls()
    assert [span.cell for span in record.weight_spans] == ["b", "a"] and record.output_ids[:2].tolist() == [5, 6]


async def test_without_a_cell_a_call_waits_and_is_then_told_to_ask_again(make_stack: MakeStack) -> None:
    stack = make_stack(cells=False, wait_limit_s=0.05)
    response = await stack.chat([user("q")])
    assert response.status_code == 503 and int(response.headers["retry-after"]) > 0
    assert response.json()["error"]["code"] == "no_sampling_cell"
    assert stack.calls() == []


async def test_a_call_waits_for_room_and_the_wait_is_counted(make_stack: MakeStack) -> None:
    gate = Gate()
    stack = make_stack(cells=False)
    engine = ScriptedEngine(lambda _: stack.scripts.pop(0), gate=gate)
    stack.cell("a", capacity=1, engine=engine)
    stack.says("one", "two")
    first = asyncio.ensure_future(stack.chat([user("q")], "g.0.0"))
    await until(lambda: bool(engine.requests))
    second = asyncio.ensure_future(stack.chat([user("q")], "g.1.0"))
    await until(lambda: stack.service.held_us("g.1.0") > 0)
    held = (await stack.internal("GET", "/internal/executions/g.1.0")).json()["held_us"]
    assert held > 0 and len(engine.requests) == 1
    await gate.open()
    assert [(await answer).status_code for answer in (first, second)] == [200, 200]
    [waited] = [call.queued_us for call in stack.calls() if call.execution == "g.1.0"]
    assert waited >= held


async def test_c11_a_client_that_leaves_aborts_its_call(make_stack: MakeStack) -> None:
    """C11: (a) during prefill, (b) after 5 tokens, in the chat dialect."""
    for passed in (0, 5):
        gate = Gate()
        stack = make_stack(cells=False)
        engine = stack.cell("a", engine=ScriptedEngine([Script(tuple(range(10, 3010)), piece=1)], gate=gate))
        body = json.dumps({"model": "policy", "messages": [user("q")], "stream": True, "max_tokens": 3000}).encode()
        gone = asyncio.Event()
        serving = asyncio.ensure_future(stack.app(scope("g.0.0", body), receiver(body, gone), nothing))
        await until(lambda engine=engine: bool(engine.requests))  # type: ignore[misc]
        if passed:
            await gate.release(passed)
        await until(lambda stack=stack, passed=passed: sampled(stack) == passed)  # type: ignore[misc]
        gone.set()
        await asyncio.wait_for(serving, 1)
        await asyncio.wait_for(until(lambda engine=engine: engine.aborted == [engine.requests[0].rid]), 1)  # type: ignore[misc]
        await until(lambda stack=stack: bool(stack.calls()))  # type: ignore[misc]
        [record] = stack.calls()
        assert record.finish.value == "cancelled" and record.output_ids.tolist() == list(range(10, 10 + passed))
        assert (await engine.stats()).running == 0


def receiver(body: bytes, gone: asyncio.Event) -> Any:
    sent = False

    async def receive() -> dict[str, Any]:
        nonlocal sent
        if not sent:
            sent = True
            return {"type": "http.request", "body": body, "more_body": False}
        await gone.wait()
        return {"type": "http.disconnect"}

    return receive


async def nothing(_: Any) -> None:
    return None


async def test_an_engine_that_never_serves_ends_in_a_retryable_error(make_stack: MakeStack) -> None:
    stack = make_stack(wait_limit_s=0.2)
    await stack.engines["a"].pause(abort=True)
    response = await stack.chat([user("q")])
    assert response.status_code == 503 and response.json()["error"]["code"] == "no_engine_answered"

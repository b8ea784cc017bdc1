"""Frozen models: engines of their own, on the way of the policy's calls, whose tokens are context."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

from gyre_engine.events.calls import Continuity, TreeClosed
from gyre_engine.events.cells import CellRole, RoleChanged
from gyre_engine.events.executions import Dispatched
from gyre_engine.sampling.scripted import Script, ScriptedEngine
from gyre_engine.trees import facts
from gyre_engine.trees.forest import Forest
from producers.cells.engine_server import engine_app
from producers.proxy.settings import POLICY, Frozen
from tests.unit.proxy.conftest import BASH, MakeStack, Stack, tool, tool_call, until, user
from tests.unit.proxy.upstream_server import hosted


@pytest.fixture
def two(make_stack: MakeStack) -> Stack:
    """A proxy with the policy on cell `a` and a frozen model beside it."""
    stack = make_stack(models={"policy": POLICY, "critic": Frozen("critic", "scripted://critic")})
    stack.engines["critic"] = ScriptedEngine(lambda _: stack.scripts.pop(0), version="0")
    return stack


async def test_a_frozen_models_call_is_recorded_by_ids_and_trains_nothing(two: Stack) -> None:
    two.says("theirs")
    assert (await two.say([user("q")], model="critic"))["content"] == "theirs"
    [record] = two.calls()
    assert two.engines["a"].requests == [] and two.prompts() == [list(two.engines["critic"].requests[0].input_ids)]
    assert two.rendering.tokenizer.decode(record.output_ids[:-1]) == "theirs"
    assert len(record.logprobs) == len(record.output_ids)
    assert record.untrainable == "sampled by the frozen model 'critic', not by the policy"
    assert [(span.start, span.cell) for span in record.weight_spans] == [(0, "frozen-critic")]


async def test_what_a_frozen_model_said_stands_in_the_policys_path_as_it_was_sampled_and_is_not_trained(two: Stack) -> None:
    two.says(tool_call("bash", '{"a":  1}'), "mine")
    message = await two.say([user("q")], model="critic", tools=[BASH])
    await two.say([user("q"), message, tool(message["tool_calls"][0]["id"], "out")], tools=[BASH])
    theirs, mine = two.calls()
    assert mine.continuity is Continuity.BRIDGED and mine.parent == theirs.call and mine.untrainable is None
    sent = list(two.engines["a"].requests[0].input_ids)
    path = np.concatenate([theirs.new_input_ids, theirs.output_ids, mine.new_input_ids])
    assert sent == path.tolist()
    await two.internal("POST", "/internal/executions/g.0.0/close")
    forest = Forest()
    *_, tree = [forest.observe(facts.of_event(event)) for event in two.events()]
    assert isinstance(tree, TreeClosed)
    assert [(node.node, node.trainable) for node in tree.nodes] == [(theirs.call, False), (mine.call, True)]


async def test_a_role_switch_and_a_newer_version_do_not_touch_a_frozen_model(two: Stack) -> None:
    router = two.service.desk.router
    router.apply([RoleChanged(cell="a", incarnation="a-1", role=CellRole.TRAINING, command_epoch=1, command_number=0)])
    router.apply([dispatched("g.0.0", version=5)])
    two.says("theirs", "mine")
    waiting = asyncio.ensure_future(two.say([user("r")]))
    await until(lambda: two.service.held_us("g.0.0") > 0)
    assert (await two.say([user("q")], model="critic"))["content"] == "theirs"
    assert not waiting.done()
    router.apply([RoleChanged(cell="a", incarnation="a-1", role=CellRole.SAMPLING, command_epoch=1, command_number=1)])
    router.apply([dispatched("g.0.0", version=0)])
    assert (await waiting)["content"] == "mine"
    assert [call.weight_spans[0].cell for call in two.calls()] == ["frozen-critic", "a"]


async def test_a_frozen_engine_that_is_away_ends_in_a_retryable_error(make_stack: MakeStack) -> None:
    stack = make_stack(models={"critic": Frozen("critic", "scripted://critic")}, wait_limit_s=0.2)
    stack.engines["critic"] = engine = ScriptedEngine([Script((1,))])
    await engine.pause(abort=True)
    response = await stack.chat([user("q")], model="critic")
    assert response.status_code == 503 and response.json()["error"]["code"] == "no_engine_answered"


async def test_a_frozen_engine_is_asked_by_ids_over_sglangs_interface(make_stack: MakeStack) -> None:
    """A real HTTP server of an engine; its name for its weights becomes the version of the record's span."""
    engine = ScriptedEngine(lambda _: stack.scripts.pop(0), version="step-7")
    async with hosted(engine_app(engine)) as url:
        stack = make_stack(models={"critic": Frozen("critic", url)}, cells=False)
        stack.says("theirs")
        assert (await stack.say([user("q")], model="critic"))["content"] == "theirs"
        await stack.service.models.close()
    [record] = stack.calls()
    assert [list(request.input_ids) for request in engine.requests] == stack.prompts()
    assert [(span.version, span.cell) for span in record.weight_spans] == [(7, "frozen-critic")]


async def test_two_names_are_two_questions(two: Stack) -> None:
    two.says("theirs", "mine")
    messages: list[dict[str, Any]] = [user("q")]
    assert [(await two.say(messages, model=name))["content"] for name in ("critic", "policy")] == ["theirs", "mine"]


def dispatched(execution: str, version: int) -> Dispatched:
    return Dispatched(
        execution=execution, group="g", index=0, attempt=0, group_size=1, group_number=0, class_number=0, query="q", source="s",
        split="train", harness="h", weight_version=version,
    )  # fmt: skip

"""`cells.record_routing`: engines are asked which experts computed a call's tokens, and the record holds those of its own."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import replace

import numpy as np
import pytest

from gyre_engine.events.calls import Finish
from gyre_engine.experts import Experts
from gyre_engine.sampling.port import Chunk, GenerateRequest
from gyre_engine.sampling.scripted import ScriptedEngine
from tests.unit.proxy.conftest import MakeStack, user
from tests.unit.proxy.test_interrupted import Switched

EXPERTS = Experts(count=200, chosen=1, ffn=8, normed=True, layers=(0, 1))
"""Two bytes a token."""


class Told(ScriptedEngine):
    """Tells of each computed token its position (modulo 200), and a number of its own."""

    own = 7

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[Chunk]:
        length = len(request.input_ids)
        async for chunk in super().generate(request):
            length += len(chunk.output_ids)
            if chunk.finish_reason is not None and request.routed_from is not None:
                yield replace(chunk, routed=self.rows(request.routed_from, length - 1))
            else:
                yield chunk

    def rows(self, first: int, end: int) -> bytes:
        return b"".join(bytes([at % 200, self.own]) for at in range(first, end))


def rows(first: int, end: int, own: int = 7) -> list[list[int]]:
    return [[at % 200, own] for at in range(first, end)]


def told(call: object) -> list[list[int]]:
    return np.asarray(call.routed_experts).reshape(-1, 2).tolist()  # type: ignore[attr-defined]


async def test_a_record_begins_at_the_last_shared_token_and_leaves_out_the_last_sampled(make_stack: MakeStack) -> None:
    stack = make_stack(cells=False, experts=EXPERTS)
    stack.cell("a", engine=Told(lambda _: stack.scripts.pop(0)))
    stack.says("one", "two")
    first = await stack.say([user("q")])
    await stack.say([user("q"), first, user("more")])
    root, turn = stack.calls()
    end = len(root.new_input_ids) + len(root.output_ids)
    assert told(root) == rows(0, end - 1)
    assert turn.prefix_len == end  # it goes on from the very token that nobody had computed
    assert told(turn) == rows(end - 1, turn.prompt_tokens + len(turn.output_ids) - 1)


async def test_a_call_over_two_cells_has_of_each_token_what_the_first_that_computed_it_told(make_stack: MakeStack) -> None:
    stack = make_stack(cells=False, experts=EXPERTS)
    switched = Switched(stack, "an answer", Told)
    asked = await switched.begin()
    await switched.leave()
    other = switched.goes_on()
    assert isinstance(other, Told)
    other.own = 9
    assert (await asked).status_code == 200
    [call] = stack.calls()
    prompt, end = call.prompt_tokens, call.prompt_tokens + len(call.output_ids)
    assert other.requests[0].routed_from == prompt + 4  # of five sampled tokens four were computed from
    assert told(call) == rows(0, prompt + 4) + rows(prompt + 4, end - 1, own=9)


async def test_an_engine_that_tells_nothing_leaves_no_record(make_stack: MakeStack) -> None:
    stack = make_stack(experts=EXPERTS)
    stack.says("one")
    await stack.say([user("q")])
    assert told(stack.calls()[0]) == [] and stack.calls()[0].untrainable is None


async def test_nothing_is_asked_for_where_nothing_is_recorded(make_stack: MakeStack) -> None:
    stack = make_stack(cells=False)
    engine = stack.cell("a", engine=Told(lambda _: stack.scripts.pop(0)))
    stack.says("one")
    await stack.say([user("q")])
    assert engine.requests[0].routed_from is None and told(stack.calls()[0]) == []


@pytest.mark.parametrize(
    ("record", "reason"), [(b"\x01\x02" * 999, "bytes of routed experts where"), (b"\xc8\x01", "beyond 199")]
)
async def test_a_record_that_does_not_fit_makes_its_call_untrainable(make_stack: MakeStack, record: bytes, reason: str) -> None:
    stack = make_stack(cells=False, experts=EXPERTS)
    engine = Told(lambda _: stack.scripts.pop(0))
    engine.rows = lambda first, end: record  # type: ignore[method-assign]
    stack.cell("a", engine=engine)
    stack.says("one")
    await stack.say([user("q")])
    [call] = stack.calls()
    assert call.finish is Finish.STOP and told(call) == []
    assert call.untrainable is not None and call.untrainable.startswith("routed experts: ") and reason in call.untrainable


async def test_a_record_that_the_log_would_not_take_is_left_out_and_said(
    make_stack: MakeStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("producers.proxy.call.ROUTED_MOST", 10)
    stack = make_stack(cells=False, experts=EXPERTS)
    stack.cell("a", engine=Told(lambda _: stack.scripts.pop(0)))
    stack.says("one")
    await stack.say([user("q")])
    [call] = stack.calls()
    assert told(call) == [] and call.untrainable is None
    [note] = call.notes
    assert note.startswith("routed experts: ") and note.endswith("bytes are more than a record may hold")

"""Which model calls count: each once, and none of a deposed owner."""

from __future__ import annotations

from gyre_engine.events.calls import ExecutionClosed, ProxyOwns
from gyre_engine.trees.owned import OwnedCalls
from tests.unit.trees.growth import EXECUTION, model_call


def test_a_call_that_stands_twice_counts_once_in_its_first_place() -> None:
    first, second = model_call(0, None, 0, [1], [2]), model_call(1, "c0", 2, [3], [4])
    owned = OwnedCalls()
    assert [owned.see(event) for event in (first, second, first)] == [True, True, True]
    assert [call.call for call in owned.of(EXECUTION)] == ["c0", "c1"]


def test_what_a_deposed_owner_still_writes_does_not_count() -> None:
    owned = OwnedCalls()
    late = model_call(1, "c0", 2, [3], [4])
    closed = ExecutionClosed(execution=EXECUTION, owner_epoch=1, calls=2, last_call="c1")
    owned.see(model_call(0, None, 0, [1], [2]))
    owned.see(ProxyOwns(execution=EXECUTION, owner_epoch=2, proxy="b"))
    assert [owned.see(event) for event in (late, closed)] == [False, False]
    assert [call.call for call in owned.of(EXECUTION)] == ["c0"]

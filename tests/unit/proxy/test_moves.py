"""What an interrupted call waits for: the scheduler's word on its drain, then its KV; and where it goes on."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import pytest

from gyre_engine.events import Event
from gyre_engine.events.cells import (
    CellRole,
    CellStarted,
    Drained,
    Interrupted,
    KvImported,
    Move,
    MoveExecutions,
    SchedulerElected,
    SwitchRole,
)
from gyre_engine.sampling.scripted import ScriptedEngine
from producers.proxy import router as routing
from producers.proxy.router import Lease, Router


def started(name: str, position: int, capacity: int = 2) -> CellStarted:
    return CellStarted(
        cell=name, position=position, incarnation="1", engine="scripted", engine_url=name, capacity=capacity,
        role=CellRole.SAMPLING, weight_version=0,
    )  # fmt: skip


def leave(cell: str = "a", number: int = 1) -> SwitchRole:
    return SwitchRole(epoch=1, number=number, cell=cell, to=CellRole.TRAINING, reason="", water_level=0, sampling_capacity=0)


def drained(*executions: str, number: int = 1) -> Drained:
    requests = tuple(Interrupted(name, f"{name}-x.1", 10) for name in executions)
    return Drained(cell="a", incarnation="1", command_epoch=1, command_number=number, weight_version=0, requests=requests)


def decided(*moves: Move, number: int = 1) -> MoveExecutions:
    return MoveExecutions(epoch=1, number=number + 1, source="a", drained=(1, number), moves=moves)


def arrived(execution: str) -> KvImported:
    return KvImported(
        cell="c", incarnation="1", source="a", command_epoch=1, command_number=1, execution=execution, rid=f"{execution}-x.1",
        tokens=9, nbytes=9, took_us=1,
    )  # fmt: skip


@pytest.fixture
def router(monkeypatch: pytest.MonkeyPatch) -> Router:
    """Three cells; `e` has a call on `a`."""
    monkeypatch.setattr(routing, "MOVE_WAIT_S", 30.0)
    made = Router(lambda url: ScriptedEngine([]))
    made.apply([started("a", 0)])
    lease = made.at_once("e")
    assert lease is not None and lease.cell == "a"
    made.release(lease)
    made.apply([started("b", 1), started("c", 2)])
    return made


async def after(router: Router, events: Iterable[Event]) -> tuple[int, Lease]:
    """How many of the events an interrupted call of `e` waits for, and where it goes on."""
    router.apply([leave()])
    going = asyncio.create_task(router.acquire("e", source="a", timeout=60))
    for number, event in enumerate(events):
        for _ in range(5):
            await asyncio.sleep(0)
        if going.done():
            return number, going.result()
        router.apply([event])
    return number + 1, await asyncio.wait_for(going, 5)


async def test_it_goes_where_the_scheduler_says_once_its_kv_is_there(router: Router) -> None:
    move = Move("e", "e-x.1", "b", True)
    waited, lease = await after(router, [drained("e"), decided(move), arrived("other"), arrived("e")])
    assert (waited, lease.cell) == (4, "b")


async def test_without_kv_it_waits_for_the_word_alone(router: Router) -> None:
    waited, lease = await after(router, [drained("e"), decided(Move("e", "e-x.1", "b", False)), arrived("e")])
    assert (waited, lease.cell) == (2, "b")


async def test_a_call_that_the_drain_does_not_name_waits_for_nothing_more(router: Router) -> None:
    """It had ended at the engine, or the engine cannot tell (SGLang): it goes where it can stay longest."""
    waited, lease = await after(router, [drained("other"), decided()])
    assert (waited, lease.cell) == (1, "c")


async def test_a_call_for_which_there_was_no_room_goes_on_by_itself(router: Router) -> None:
    waited, lease = await after(router, [drained("e", "f"), decided(Move("f", "f-x.1", "c", True))])
    assert (waited, lease.cell) == (2, "c")


async def test_an_old_drain_is_no_word_on_a_new_one(router: Router) -> None:
    router.apply([leave(number=1), drained("e"), decided(Move("f", "f-x.1", "b", False))])
    router.apply([leave(number=7)])
    going = asyncio.create_task(router.acquire("e", source="a", timeout=60))
    await asyncio.sleep(0)
    assert not going.done()
    router.apply([drained("e", number=7), decided(Move("e", "e-x.1", "b", False), number=7)])
    assert (await asyncio.wait_for(going, 5)).cell == "b"


async def test_a_scheduler_that_says_nothing_is_not_waited_for_beyond_the_limit(
    router: Router, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(routing, "MOVE_WAIT_S", 0.01)
    router.apply([leave(), drained("e")])
    assert (await router.acquire("e", source="a", timeout=60)).cell == "c"


async def test_room_is_kept_for_those_whose_calls_are_on_their_way(router: Router) -> None:
    """`c` has two places: one taken, one kept for an execution that is open on `a` still; for a third, which is over, none."""
    there, leaving = router.at_once("f"), router.at_once("e")
    assert there is not None and leaving is not None and (there.cell, leaving.cell) == ("c", "a")
    router.apply([leave(), drained("e"), decided(Move("e", "e-x.1", "c", True), Move("g", "g-x.1", "c", True))])
    other = router.at_once("new")
    assert other is not None and other.cell == "b"
    router.release(leaving)
    router.apply([arrived("e")])
    assert (await router.acquire("e", source="a", timeout=5)).cell == "c"


async def test_what_was_moved_in_the_past_holds_no_room() -> None:
    """A proxy that begins anew reads every switch of the run; its executions are over."""
    made = Router(lambda url: ScriptedEngine([]))
    made.apply([started("a", 0), started("c", 2)])
    past = [Move(f"e{n}", f"e{n}-x.1", "c", True) for n in range(2)]
    made.apply([leave(), drained("e0", "e1"), decided(*past)])
    lease = made.at_once("new")
    assert lease is not None and lease.cell == "c"


async def test_a_deposed_scheduler_moves_nobody(router: Router) -> None:
    late = MoveExecutions(epoch=1, number=3, source="a", drained=(2, 1), moves=(Move("e", "e-x.1", "b", True),))
    new = SwitchRole(epoch=2, number=1, cell="a", to=CellRole.TRAINING, reason="", water_level=0, sampling_capacity=0)
    gone = Drained(
        cell="a", incarnation="1", command_epoch=2, command_number=1, weight_version=0,
        requests=(Interrupted("e", "e-x.1", 10),),
    )  # fmt: skip
    router.apply([SchedulerElected(epoch=2, holder="s"), new, gone, late])
    going = asyncio.create_task(router.acquire("e", source="a", timeout=60))
    for _ in range(5):
        await asyncio.sleep(0)
    assert not going.done()
    router.apply([MoveExecutions(epoch=2, number=2, source="a", drained=(2, 1), moves=(Move("e", "e-x.1", "c", False),))])
    assert (await asyncio.wait_for(going, 5)).cell == "c"


async def test_two_calls_of_one_execution_go_on_together(router: Router) -> None:
    router.apply([leave()])
    going = [asyncio.create_task(router.acquire("e", source="a", timeout=60)) for _ in range(2)]
    await asyncio.sleep(0)
    moves = (Move("e", "e-x.1", "b", True), Move("e", "e-y.1", "b", False))
    router.apply([drained("e"), decided(*moves), arrived("e")])
    assert [lease.cell for lease in await asyncio.gather(*going)] == ["b", "b"]


async def test_a_failed_engine_that_nobody_told_to_leave_is_left_at_once(router: Router) -> None:
    assert (await asyncio.wait_for(router.acquire("e", source="a", timeout=60), 1)).cell == "c"


async def test_word_that_comes_twice_late_or_before_its_drain_is_the_same_word(router: Router) -> None:
    """`cells` and `commands` have no order between them, and what arrived stays arrived."""
    word = decided(Move("e", "e-x.1", "b", True))
    waited, lease = await after(router, [word, drained("e"), arrived("e")])
    assert (waited, lease.cell) == (3, "b")
    again = [drained("e", number=7), decided(Move("e", "e-x.1", "c", True), number=7), arrived("e"), word]
    router.apply([leave(number=7), *again])
    assert (await asyncio.wait_for(router.acquire("e", source="a", timeout=60), 5)).cell == "c"

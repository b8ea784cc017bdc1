"""How long a call waits without progress: one limit over all engines that fail it and all that it waits for in between."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import numpy as np
import pytest

from gyre_engine.events.cells import CellRole, CellStarted, Drained, Interrupted, Move, MoveExecutions, SwitchRole
from gyre_engine.sampling.port import Chunk, EngineNotServing, FinishReason, GenerateRequest, SamplingParams
from gyre_engine.sampling.scripted import ScriptedEngine
from producers.proxy import generation
from producers.proxy import router as routing
from producers.proxy.exchange import ProxyError
from producers.proxy.generation import Job, Sampled, sample
from producers.proxy.router import Lease, Router


class Clock:
    """Time passes only where a test lets it."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def monotonic_ns(self) -> int:
        return int(self.now * 1e9)


class Waiting(Router):
    """Nothing changes while it waits."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(lambda url: ScriptedEngine([]))
        self._clock = clock

    async def _change(self, timeout: float) -> None:
        self._clock.now += timeout


def started(cell: str = "a", position: int = 0) -> CellStarted:
    return CellStarted(
        cell=cell, position=position, incarnation="1", engine="scripted", engine_url=cell, capacity=2, role=CellRole.SAMPLING,
        weight_version=0,
    )  # fmt: skip


LEAVE = SwitchRole(epoch=1, number=1, cell="a", to=CellRole.TRAINING, reason="", water_level=0, sampling_capacity=0)
DRAINED = Drained(
    cell="a", incarnation="1", command_epoch=1, command_number=1, weight_version=0, requests=(Interrupted("e", "e-x.1", 10),)
)


@pytest.mark.parametrize("timeout", [1.5, 2.0, 900.0])
async def test_the_wait_for_word_is_part_of_the_wait_for_an_engine(monkeypatch: pytest.MonkeyPatch, timeout: float) -> None:
    clock = Clock()
    monkeypatch.setattr(routing, "time", clock)
    router = Waiting(clock)
    router.apply([started(), LEAVE, DRAINED])
    with pytest.raises(ProxyError, match=f"for {timeout:.0f} s"):
        await router.acquire("e", source="a", timeout=timeout)
    assert clock.now == timeout


@pytest.mark.parametrize(
    ("moves", "timeout", "waits"),
    [
        ((Move("e", "e-x.1", "b", True),), 900.0, 2.0),  # of an earlier scheduler, which does not say
        ((Move("e", "e-x.1", "b", True, 40_000_000),), 900.0, 40.0),
        ((Move("e", "e-x.1", "b", True, 40_000_000),), 30.0, 30.0),
        ((Move("e", "e-x.1", "b", True, 3_000_000), Move("e", "e-y.1", "b", True, 7_000_000)), 900.0, 7.0),
        ((Move("e", "e-x.1", "b", False, 0), Move("f", "f-y.1", "b", True, 7_000_000)), 900.0, 0.0),
    ],
)
async def test_kv_is_waited_for_as_long_as_the_scheduler_says_that_it_is_worth(
    monkeypatch: pytest.MonkeyPatch, moves: tuple[Move, ...], timeout: float, waits: float
) -> None:
    clock = Clock()
    monkeypatch.setattr(routing, "time", clock)
    router = Waiting(clock)
    decided = MoveExecutions(epoch=1, number=2, source="a", drained=(1, 1), moves=moves)
    router.apply([started(), started("b", 1), LEAVE, DRAINED, decided])
    assert (await router.acquire("e", source="a", timeout=timeout)).cell == "b"
    assert clock.now == waits


class Failing(ScriptedEngine):
    """Takes 40 s to fail; at the third time it samples two tokens and stops."""

    def __init__(self, clock: Clock, grows: bool) -> None:
        super().__init__([])
        self.clock, self.grows, self.times = clock, grows, 0

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[Chunk]:
        self.times += 1
        if self.times == 3:
            yield Chunk((7, 8), (-0.1, -0.2), "3", finish_reason=FinishReason.STOP)
            return
        self.clock.now += 40.0
        if self.grows:
            yield Chunk((5,), (-0.1,), "3")
        raise EngineNotServing("not now")


class Asked(Router):
    """Remembers how long it was to wait."""

    def __init__(self, engine: ScriptedEngine) -> None:
        super().__init__(lambda url: engine)
        self.timeouts: list[float] = []
        self.apply([started()])

    async def acquire(self, execution: str, *, source: str = "", timeout: float) -> Lease:
        self.timeouts.append(timeout)
        return await super().acquire(execution, source=source, timeout=timeout)


@pytest.mark.parametrize(("grows", "expected"), [(False, [60.0, 20.0]), (True, [100.0, 100.0])], ids=["none", "tokens"])
async def test_engines_that_fail_share_one_wait_until_one_brings(
    grows: bool, expected: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    monkeypatch.setattr(generation, "time", clock)
    monkeypatch.setattr(generation, "RETRY_FIRST_S", 0.001)
    router = Asked(Failing(clock, grows))
    job = Job("g.0.0", "r", np.array([1, 2], dtype=np.int32), SamplingParams(), 100, 100.0)
    assert await sample(router, job, Sampled(), asyncio.Event(), lambda _: None) is FinishReason.STOP
    assert router.timeouts == expected

"""The two clocks on a process whose time is told by hand: the same actions under ten times the queueing end the same way."""

from __future__ import annotations

import asyncio

import pytest

from producers.runner.clock import watch
from producers.runner.endings import Stopped


class Told:
    """A process with a clock of its own: waiting moves it; it ends after `works_s` of served time and what it was held up."""

    def __init__(self, works_s: float, held_share: float) -> None:
        self.elapsed_s, self._share = 0.0, held_share
        self._end_s = works_s / (1.0 - held_share)

    async def wait(self, timeout: float) -> bool:
        self.elapsed_s = min(self.elapsed_s + timeout, self._end_s)
        await asyncio.sleep(0)
        return self.elapsed_s >= self._end_s

    async def held(self) -> float | None:
        return self.elapsed_s * self._share


async def ends(process: Told, served_s: float, overall_s: float = 1e9) -> Stopped:
    return await watch(process, served_s=served_s, overall_s=overall_s, held=process.held, cancelled=asyncio.Event())  # type: ignore[arg-type]


@pytest.mark.parametrize("held_share", [0.0, 0.5, 0.9, 0.99])
async def test_queueing_does_not_change_how_it_ends(held_share: float) -> None:
    assert await ends(Told(works_s=90.0, held_share=held_share), served_s=100.0) is Stopped.ITSELF
    assert await ends(Told(works_s=110.0, held_share=held_share), served_s=100.0) is Stopped.SERVED_TIME


async def test_the_overall_limit_counts_every_second() -> None:
    process = Told(works_s=50.0, held_share=0.9)
    assert await ends(process, served_s=100.0, overall_s=300.0) is Stopped.OVERALL_TIME
    assert process.elapsed_s == pytest.approx(300.0, abs=1.0)


async def test_while_the_proxy_is_away_nothing_is_held_against_the_agent() -> None:
    process, answers = Told(works_s=150.0, held_share=0.5), iter([None, None, 60.0])

    async def held() -> float | None:
        return next(answers, process.elapsed_s * 0.5)

    stopped = await watch(process, served_s=100.0, overall_s=1e9, held=held, cancelled=asyncio.Event())  # type: ignore[arg-type]
    assert stopped is Stopped.SERVED_TIME
    assert process.elapsed_s == pytest.approx(200.0, abs=2.0)


async def test_a_cancelled_execution_is_told_at_once() -> None:
    cancelled = asyncio.Event()
    cancelled.set()

    class Endless(Told):
        async def wait(self, timeout: float) -> bool:
            return await asyncio.Event().wait()

    process = Endless(works_s=90.0, held_share=0.0)
    assert await watch(process, served_s=100.0, overall_s=1e9, held=process.held, cancelled=cancelled) is Stopped.CANCELLED  # type: ignore[arg-type]

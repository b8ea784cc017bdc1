"""`publish.inflight = "drain"`: no call has tokens of two versions by a publication, unless the limit is over."""

from __future__ import annotations

import asyncio
import hashlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from gyre_engine.events.cells import (
    CellHealth,
    CellRole,
    Drained,
    LifeChanged,
    LifeState,
    LifeTrigger,
    RoleChanged,
    WeightsLoaded,
)
from gyre_engine.events.training import CoreElected, Published
from gyre_engine.sampling.port import Completion, FinishReason, GenerateRequest, complete
from gyre_engine.sampling.scripted import Gate, Script, ScriptedEngine
from gyre_engine.scheduling.life import LifeLimits
from gyre_engine.transfer import Region
from tests.unit.cells.test_cell_life import Engine, Led

S, T = LifeState, LifeTrigger
IDS = tuple(range(10, 20))


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("producers.cells.agent.ASK_AGAIN_S", 0.01)


class Gated(Engine):
    """Answers `IDS`, as its gate lets them pass; says itself what a drain interrupts."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = Gate()
        ScriptedEngine.__init__(self, lambda _: Script(IDS, piece=1), version="0", gate=self.gate)

    drain = ScriptedEngine.drain

    def ask(self, name: str) -> asyncio.Task[Completion]:
        return asyncio.create_task(complete(self, GenerateRequest(f"{name}-abc.1", [1, 2])))


class Draining(Led):
    """An agent that lets calls end; `publish` offers a version to it."""

    def __init__(self, folder: Path, engine: Gated, limits: LifeLimits | None = None) -> None:
        super().__init__(folder, engine, limits)
        self._of = replace(self._of, drain=True)
        self.gated = engine

    async def asked(self, name: str) -> asyncio.Task[Completion]:
        """A call that has sampled two ids."""
        call, before = self.gated.ask(name), (await self.gated.stats()).generated_tokens
        await self.gated.gate.release(2)
        async with asyncio.timeout(20):
            while (await self.gated.stats()).generated_tokens < before + 2:
                await asyncio.sleep(0)
        return call

    def publish(self, version: int) -> None:
        image = np.full(64, version, dtype=np.uint8)
        descriptor = self._transfer.register(Region.of_array(image))
        self.say(
            CoreElected(core_epoch=1, holder="p", cell="c0"),
            Published(
                core_epoch=1, version=version, weights_hash=hashlib.sha256(image.data).hexdigest(),
                descriptor=descriptor.to_bytes(), nbytes=64, probe_ids=np.zeros(0, np.int32),
                probe_logprobs=np.zeros(0, np.float32),
            ),
        )  # fmt: skip

    async def loaded(self, version: int) -> None:
        await self.until(lambda: version in [event.version for event in self.said(WeightsLoaded)])  # type: ignore[attr-defined]


async def test_calls_in_flight_end_under_the_weights_that_they_began_with(tmp_path: Path) -> None:
    """The cell is seen as one that does not serve meanwhile, also where its health comes round, and changes no role by it."""
    engine = Gated()
    async with Draining(tmp_path, engine) as cell:
        call = await cell.asked("g0.0.0")
        cell.publish(1)
        await cell.at(S.FINISHING)
        healths = len(cell.said(CellHealth))
        await cell.until(lambda: len(cell.said(CellHealth)) >= healths + 2)
        assert cell.states()[-1] is S.FINISHING and not cell.said(WeightsLoaded)
        await engine.gate.open()
        answer = await call
        assert (answer.output_ids, answer.weight_spans) == (IDS, ((0, "0"),))
        await cell.at(S.SAMPLING)
        assert cell.states()[-3:] == [S.FINISHING, S.REFRESHING, S.SAMPLING]
        healths = len(cell.said(CellHealth))
        await cell.until(lambda: len(cell.said(CellHealth)) > healths)
        assert cell.said(WeightsLoaded) and not cell.said(RoleChanged)
        assert (await engine.ask("g0.1.0")).weight_spans == ((0, "1"),)


async def test_an_idle_cell_loads_at_once_and_the_next_version_too(tmp_path: Path) -> None:
    async with Draining(tmp_path, Gated()) as cell:
        for version in (1, 2):
            cell.publish(version)
            await cell.loaded(version)
            await cell.at(S.SAMPLING)
        assert cell.states()[2:] == [S.FINISHING, S.REFRESHING, S.SAMPLING] * 2


async def test_beyond_the_limit_they_go_on_under_the_new_weights_and_the_log_says_so(tmp_path: Path) -> None:
    engine = Gated()
    async with Draining(tmp_path, engine, LifeLimits(finishing=0.05)) as cell:
        call = await cell.asked("g0.0.0")
        cell.publish(1)
        await cell.loaded(1)
        await engine.gate.open()
        answer = await call
        assert (answer.output_ids, answer.weight_spans) == (IDS, ((0, "0"), (2, "1")))
        over = cell.said(LifeChanged)[-1]
        assert isinstance(over, LifeChanged)
        assert (over.before, over.trigger, over.after) == (S.FINISHING, T.TIMED_OUT, S.SAMPLING)
        assert over.detail == "finishing-calls took longer than 0.05 s"
        assert not (await engine.stats()).paused


async def test_a_call_that_slipped_in_before_the_pause_ends_too(tmp_path: Path) -> None:
    """A proxy may not have read yet that the cell does not serve."""

    class Raced(Gated):
        slipped: asyncio.Task[Completion] | None = None

        async def pause(self, *, abort: bool) -> None:
            if not abort and self.slipped is None:
                self.slipped = self.ask("g0.1.0")
                while not self.requests:
                    await asyncio.sleep(0)
            await super().pause(abort=abort)

    engine = Raced()
    async with Draining(tmp_path, engine) as cell:
        cell.publish(1)
        await cell.until(lambda: engine.slipped is not None)
        await engine.gate.open()
        await cell.loaded(1)
        assert engine.slipped is not None
        answer = await engine.slipped
        assert (answer.finish_reason, answer.weight_spans) == (FinishReason.STOP, ((0, "0"),))
        assert T.TIMED_OUT not in [event.trigger for event in cell.said(LifeChanged)]  # type: ignore[attr-defined]


async def test_a_command_interrupts_calls_that_are_let_end(tmp_path: Path) -> None:
    async with Draining(tmp_path, Gated(), LifeLimits(exporting=0.05)) as cell:
        call = await cell.asked("g0.0.0")
        cell.publish(1)
        await cell.at(S.FINISHING)
        cell.command(CellRole.TRAINING)
        await cell.at(S.JOINING)
        answer = await call
        assert (answer.finish_reason, answer.output_ids) == (FinishReason.ABORT, IDS[:2])
        await cell.until(lambda: bool(cell.said(RoleChanged)))
        [drained] = cell.said(Drained)
        assert isinstance(drained, Drained) and [one.execution for one in drained.requests] == ["g0.0.0"]
        assert cell.states()[-4:] == [S.FINISHING, S.DRAINING, S.EXPORTING, S.JOINING]
        assert [event.role for event in cell.said(RoleChanged)] == [CellRole.TRAINING]  # type: ignore[attr-defined]

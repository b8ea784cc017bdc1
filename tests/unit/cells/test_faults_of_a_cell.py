"""A cell in each state of its life: its agent is killed, its engine goes away, its agent sleeps, a command comes twice, late or from
an old epoch. Real agents on a log in memory, whose engine outlives them, as a process of its own does.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from dataclasses import replace
from os import PathLike
from pathlib import Path

import numpy as np
import pytest

from gyre_engine.events import Event
from gyre_engine.events.cells import (
    CellHealth,
    CellRole,
    CellStarted,
    KvExported,
    KvImported,
    LifeChanged,
    LifeState,
    LifeTrigger,
    Move,
    MoveExecutions,
    RoleChanged,
    SchedulerElected,
    SwitchRole,
)
from gyre_engine.events.training import Published
from gyre_engine.log.election import Deposed
from gyre_engine.sampling.kv import KvTicket
from gyre_engine.sampling.port import EngineNotServing, InFlight
from gyre_engine.scheduling.cells import Fleet, observe
from gyre_engine.scheduling.life import LifeLimits, after
from gyre_engine.transfer import Region
from producers.cells.agent import CellAgent
from tests.unit.cells.test_cell_life import Engine, Led, sealed, step

S, T = LifeState, LifeTrigger
TRAIN, SAMPLE = CellRole.TRAINING, CellRole.SAMPLING


class OwnProcess(Engine):
    """Lives on when its agent ends; may hang in a call, and be killed."""

    def __init__(self, *, busy: bool = False) -> None:
        super().__init__(busy=busy)
        self.free = asyncio.Event()
        self.hangs = ""

    async def _called(self, what: str) -> None:
        if self.hangs == what:
            await self.free.wait()
        if self.away:
            raise EngineNotServing("connection refused")

    async def drain(self) -> tuple[InFlight, ...]:
        await self._called("drain")
        return await super().drain()

    async def load_weights(self, folder: str | PathLike[str], version: str) -> None:
        await self._called("load_weights")
        await super().load_weights(folder, version)

    async def close(self) -> None: ...


class Cell(Led):
    """`lives`: how many agents it has had; the last one leads it."""

    def __init__(self, folder: Path, engine: OwnProcess, limits: LifeLimits | None = None) -> None:
        super().__init__(folder, engine, limits)
        self.engine: OwnProcess = engine
        self.lives = 1

    async def killed(self) -> None:
        """As by kill -9: nothing more is said, whatever it was about to do."""
        self.running.cancel()
        await asyncio.gather(self.running, return_exceptions=True)

    def lives_again(self) -> asyncio.Task[bool]:
        """What the supervisor starts; the task of the life before."""
        before, self.lives = self.running, self.lives + 1
        of = replace(self._of, incarnation=f"i{self.lives}")
        self.running = asyncio.create_task(CellAgent(of, self.log, self.engine, self._transfer, self.engine).run(self.ending))
        return before

    @property
    def fleet(self) -> Fleet:
        """As everybody else sees it."""
        fleet = Fleet()
        for topic in ("cells", "commands"):
            for record in self.log.read(topic):
                fleet = observe(fleet, record.event)
        return fleet

    def changes(self, incarnation: str) -> list[LifeChanged]:
        return [e for e in self.said(LifeChanged) if isinstance(e, LifeChanged) and e.incarnation == incarnation]

    def publish(self) -> None:
        image = np.arange(64, dtype=np.uint8)
        descriptor = self._transfer.register(Region.of_array(image))
        self.say(
            Published(
                core_epoch=1, version=1, weights_hash=hashlib.sha256(image.data).hexdigest(), descriptor=descriptor.to_bytes(),
                nbytes=64, probe_ids=np.zeros(0, np.int32), probe_logprobs=np.zeros(0, np.float32),
            )
        )  # fmt: skip

    async def reach(self, state: LifeState) -> None:
        """From sampling to this state, and no further."""
        if state is S.SAMPLING:
            return
        self.engine.hangs = {S.DRAINING: "drain", S.REFRESHING: "load_weights"}.get(state, "")
        self.engine.busy = state is S.EXPORTING
        self.command(TRAIN)
        if state in (S.TRAINING, S.SEALING):
            self.say(*step())
            await self.at(S.TRAINING)
        if state is S.REFRESHING:
            await self.at(S.JOINING)
            self.say(*step(()))
            await self.at(S.TRAINING)
            self.publish()
            self.say(sealed())
        if state in (S.SEALING, S.REFRESHING):
            self.command(SAMPLE)
        await self.at(state)


ENDS = {
    S.SAMPLING: S.SAMPLING, S.DRAINING: S.JOINING, S.EXPORTING: S.JOINING, S.JOINING: S.JOINING, S.TRAINING: S.TRAINING,
    S.SEALING: S.SAMPLING, S.REFRESHING: S.SAMPLING,
}  # fmt: skip
"""Where a cell that lost its agent or its engine in a state ends: as its last command says; in training where its trainer is a member
still."""
ROLES = {S.SAMPLING: SAMPLE, S.JOINING: TRAIN, S.TRAINING: TRAIN}


@pytest.mark.parametrize("state", ENDS)
async def test_an_agent_that_is_killed_in_a_state_is_followed_by_one_that_ends_as_commanded(
    tmp_path: Path, state: LifeState
) -> None:
    async with Cell(tmp_path, OwnProcess()) as cell:
        await cell.reach(state)
        await cell.killed()
        cell.engine.hangs = ""
        cell.lives_again()
        await cell.until(lambda: [change.after for change in cell.changes("i2")][-1:] == [ENDS[state]])
        await cell.until(lambda: cell.fleet.cells["c1"].incarnation == "i2" and cell.fleet.cells["c1"].role is ROLES[ENDS[state]])
        assert cell.fleet.due("c1") is None and cell.fleet.serves("c1") is (ENDS[state] is S.SAMPLING)
        assert (await cell.engine.stats()).paused is (ENDS[state] is not S.SAMPLING)
        check_table(cell)


@pytest.mark.parametrize("state", ENDS)
async def test_a_cell_whose_engine_is_killed_in_a_state_is_lost_until_the_next_one_serves(
    tmp_path: Path, state: LifeState
) -> None:
    async with Cell(tmp_path, OwnProcess()) as cell:
        await cell.reach(state)
        cell.engine.away = True
        cell.engine.free.set()
        await cell.at(S.LOST)
        await cell.until(lambda: not cell.fleet.cells["c1"].healthy)
        assert cell.fleet.away("c1") and not cell.fleet.serves("c1")
        cell.engine.away = False
        await cell.at(ENDS[state])
        await cell.until(lambda: not cell.fleet.away("c1"))
        assert cell.fleet.cells["c1"].role is ROLES[ENDS[state]] and cell.fleet.due("c1") is None
        check_table(cell)


def check_table(cell: Cell) -> None:
    """Each agent went from starting along the table of lives."""
    for life in range(1, cell.lives + 1):
        state = S.STARTING
        for change in cell.changes("i" if life == 1 else f"i{life}"):
            assert (change.before, after(change.before, change.trigger)) == (state, change.after)
            state = change.after


async def test_an_engine_that_never_answers_a_drain_is_given_up_at_the_limit(tmp_path: Path) -> None:
    """As one that was stopped (SIGSTOP) does."""
    async with Cell(tmp_path, OwnProcess(), LifeLimits(draining=0.2)) as cell:
        await cell.reach(S.DRAINING)
        await cell.at(S.JOINING)
        assert [change.trigger for change in cell.changes("i")][-2:] == [T.TIMED_OUT, T.BACK_TO_TRAIN]


async def test_a_paused_agent_that_wakes_when_another_leads_its_cell_ends(tmp_path: Path) -> None:
    """It says nothing more that counts, and leaves the engine to the other."""
    async with Cell(tmp_path, OwnProcess()) as cell:
        asleep = cell.lives_again()
        with pytest.raises(Deposed, match="its agent i ends: i2 has started after it"):
            await asyncio.wait_for(asleep, 20)
        await cell.until(lambda: cell.fleet.serves("c1"))
        assert cell.fleet.cells["c1"].incarnation == "i2" and not (await cell.engine.stats()).paused


async def test_a_command_that_comes_twice_late_or_from_an_old_epoch_moves_nobody(tmp_path: Path) -> None:
    """After each of them the cell is told something that it does, so that what did not happen has had its time."""
    async with Cell(tmp_path, OwnProcess()) as cell:
        cell.say(SchedulerElected(epoch=2, holder="s"))

        def switch(number: int, to: CellRole, epoch: int = 2) -> SwitchRole:
            return SwitchRole(epoch=epoch, number=number, cell="c1", to=to, reason="", water_level=0, sampling_capacity=0)

        cell.say(switch(1, TRAIN), switch(1, TRAIN))
        await cell.at(S.JOINING)
        cell.say(switch(1, TRAIN), switch(2, SAMPLE))
        await cell.at(S.SAMPLING)
        cell.say(switch(1, TRAIN), switch(9, TRAIN, epoch=1), switch(2, SAMPLE), switch(3, TRAIN))
        await cell.at(S.JOINING)
        cell.say(switch(4, SAMPLE), switch(3, TRAIN), switch(8, TRAIN, epoch=1))
        await cell.at(S.SAMPLING)
        changed = [event for event in cell.said(RoleChanged) if isinstance(event, RoleChanged)]
        assert [(e.command_number, e.role) for e in changed] == [(1, TRAIN), (2, SAMPLE), (3, TRAIN), (4, SAMPLE)]
        assert cell.fleet.due("c1") is None


def moved(number: int, epoch: int = 1, wait_s: float = 0.0) -> MoveExecutions:
    moves = tuple(Move(f"g0.{n}.0", f"r{n}", "c2", True, int(1e6 * wait_s)) for n in range(2))
    return MoveExecutions(epoch=epoch, number=number, source="c1", drained=(1, 1), moves=moves)


def imported(rid: str) -> KvImported:
    return KvImported(
        cell="c2", incarnation="i", source="c1", command_epoch=1, command_number=1, execution="g", rid=rid, tokens=1, nbytes=1,
        took_us=1,
    )  # fmt: skip


@pytest.mark.parametrize("late", [moved(2), moved(1), moved(9, epoch=0)], ids=["twice", "late", "an old epoch"])
async def test_word_of_where_calls_go_on_that_comes_again_forgets_no_import(tmp_path: Path, late: Event) -> None:
    """It would keep the cell from training until the limit of exporting."""
    async with Cell(tmp_path, OwnProcess(), LifeLimits(exporting=600.0)) as cell:
        await cell.reach(S.EXPORTING)
        cell.say(moved(2))
        await cell.until(lambda: len(cell.said(KvExported)) == 2)
        cell.say(imported("r0"))
        cell.say(late)
        reports = len(cell.said(CellHealth))
        await cell.until(lambda: len(cell.said(CellHealth)) > reports + 1)
        cell.say(imported("r1"))
        await cell.at(S.JOINING)
        assert len(cell.said(KvExported)) == 2 and [c.trigger for c in cell.changes("i")][-1] is T.EXPORTED


async def test_word_of_a_deposed_scheduler_moves_no_kv(tmp_path: Path) -> None:
    async with Cell(tmp_path, OwnProcess(), LifeLimits(exporting=600.0)) as cell:
        await cell.reach(S.EXPORTING)
        cell.say(moved(9, epoch=0))
        reports = len(cell.said(CellHealth))
        await cell.until(lambda: len(cell.said(CellHealth)) > reports + 1)
        assert cell.said(KvExported) == []
        cell.say(moved(2))
        await cell.until(lambda: len(cell.said(KvExported)) == 2)


async def test_kv_that_is_worth_it_may_be_read_beyond_the_limit_of_exporting(tmp_path: Path) -> None:
    class Leasing(OwnProcess):
        leases: tuple[float, ...] = ()

        async def export_kv(self, rid: str, *, lease: float) -> KvTicket | None:
            self.leases += (lease,)
            return await super().export_kv(rid, lease=lease)

    engine = Leasing(busy=True)
    async with Cell(tmp_path, engine, LifeLimits(exporting=0.02)) as cell:
        cell.command(TRAIN)
        cell.say(moved(2, wait_s=100.0))
        await cell.until(lambda: len(cell.said(KvExported)) == 2)
        over = time.monotonic() + 0.05
        await cell.until(lambda: time.monotonic() > over)
        reports = len(cell.said(CellHealth))
        await cell.until(lambda: len(cell.said(CellHealth)) > reports + 1)
        cell.say(imported("r0"), imported("r1"))
        await cell.at(S.JOINING)
        assert [c.trigger for c in cell.changes("i")][-1] is T.EXPORTED
        assert engine.leases == (200.0, 200.0)


async def test_a_destination_that_never_answers_costs_the_limit_of_exporting(tmp_path: Path) -> None:
    """Killed or paused, engine or agent: the source frees its pages and joins."""
    async with Cell(tmp_path, OwnProcess(), LifeLimits(exporting=0.3)) as cell:
        await cell.reach(S.EXPORTING)
        cell.say(moved(2))
        await cell.until(lambda: len(cell.said(KvExported)) == 2)
        assert len(cell.engine.kept) == 2
        await cell.at(S.JOINING)
        await cell.until(lambda: cell.engine.kept == [])
        assert [change.trigger for change in cell.changes("i")][-1] is T.TIMED_OUT


async def test_a_cell_that_is_started_again_and_again_announces_each_life_once(tmp_path: Path) -> None:
    async with Cell(tmp_path, OwnProcess()) as cell:
        for life in (2, 3):
            await cell.killed()
            cell.lives_again()
            await cell.until(lambda life=life: cell.fleet.cells["c1"].incarnation == f"i{life}" and cell.fleet.serves("c1"))  # type: ignore[misc]
        started = [event.incarnation for event in cell.said(CellStarted)]  # type: ignore[attr-defined]
        assert started == ["i", "i2", "i3"]

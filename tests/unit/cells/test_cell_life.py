"""An agent leads its cell through the table of lives and nowhere else, whatever is commanded and whatever breaks."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from gyre_engine.events import Event
from gyre_engine.events.cells import (
    CellRole,
    CellStarted,
    Drained,
    KvExported,
    KvImported,
    LifeChanged,
    LifeState,
    LifeTrigger,
    Move,
    MoveExecutions,
    ProbeGap,
    RoleChanged,
    SchedulerElected,
    SwitchRole,
)
from gyre_engine.events.training import CoreElected, MemberJoined, MemberReleased, Published, Sealed, StepCommitted, StepOpened
from gyre_engine.sampling.kv import KvTicket
from gyre_engine.sampling.port import EngineNotServing, InFlight
from gyre_engine.sampling.scripted import ScriptedEngine
from gyre_engine.scheduling.life import LifeLimits, after
from gyre_engine.transfer import Region
from producers.cells.agent import CellAgent
from tests.unit.cells.test_cell_agent import Life, settings

S, T = LifeState, LifeTrigger


class Engine(ScriptedEngine):
    """Has one request in flight where `busy`, keeps KV of it, and may go away."""

    def __init__(self, *, busy: bool = False) -> None:
        super().__init__([], version="0")
        self.busy, self.away, self.kept = busy, False, list[str]()

    async def drain(self) -> tuple[InFlight, ...]:
        await super().drain()
        return (InFlight("g0.0.0-abc.1", 50),) if self.busy else ()

    async def stats(self):  # type: ignore[no-untyped-def]
        if self.away:
            raise EngineNotServing("connection refused")
        return await super().stats()

    async def export_kv(self, rid: str, *, lease: float) -> KvTicket | None:
        self.kept.append(rid)
        return KvTicket("0", (1, 2, 1, 49, 8), b"where", b"ids")

    async def import_kv(self, ticket: KvTicket) -> int:
        return ticket.tokens

    async def release_kv(self, ticket: KvTicket) -> None:
        self.kept.pop()


class Led(Life):
    """An agent whose engine moves KV; `say` puts what others say on the log."""

    def __init__(self, folder: Path, engine: Engine, limits: LifeLimits | None = None) -> None:
        of = settings(folder)
        super().__init__(replace(of, limits=limits or of.limits, health_s=0.05), engine)
        self.engine, self.number = engine, 0

    async def __aenter__(self) -> Led:
        self.agent = CellAgent(self._of, self.log, self.engine, self._transfer, self.engine)
        self.running = asyncio.create_task(self.agent.run(self.ending))
        await self.until(lambda: bool(self.said(CellStarted)))
        return self

    def say(self, *events: Event) -> None:
        self.log.append_all(list(events))

    def command(self, to: CellRole) -> None:
        self.number += 1
        self.say(
            SwitchRole(epoch=1, number=self.number, cell="c1", to=to, reason="", water_level=0, sampling_capacity=0),
        )

    def states(self) -> list[LifeState]:
        return [event.after for event in self.said(LifeChanged)]  # type: ignore[attr-defined]

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(20):
            while not condition():
                assert not self.running.done(), self.running
                await asyncio.sleep(0.005)

    async def at(self, state: LifeState) -> None:
        await self.until(lambda: self.states()[-1:] == [state])


def step(micro_steps: tuple[str, ...] = ("m",)) -> list[Event]:
    opened = StepOpened(
        core_epoch=1, step=1, attempt=1, weights_hash="w", groups=("g",), scores=("s",), micro_steps=micro_steps, executions=2,
        divisor=2, staleness_max=0, staleness_mean=0.0,
    )  # fmt: skip
    joined = MemberJoined(cell="c1", member_epoch=1, step=1, attempt=1, weights_hash="w")
    return [CoreElected(core_epoch=1, holder="p", cell="c0"), opened, joined]


def sealed() -> Sealed:
    return Sealed(cell="c1", member_epoch=1, step=1, attempt=1, micro_steps=(), buffer_hash="h", descriptor=b"")


async def test_the_full_circle_with_a_step_in_it(tmp_path: Path) -> None:
    async with Led(tmp_path, Engine()) as cell:
        assert cell.states() == [S.REFRESHING, S.SAMPLING]
        cell.command(CellRole.TRAINING)
        await cell.at(S.JOINING)
        cell.say(*step())
        await cell.at(S.TRAINING)
        cell.command(CellRole.SAMPLING)
        await cell.at(S.SEALING)
        cell.say(sealed())
        await cell.at(S.SAMPLING)
        assert cell.states()[2:] == [S.DRAINING, S.EXPORTING, S.JOINING, S.TRAINING, S.SEALING, S.REFRESHING, S.SAMPLING]
        roles = [(event.role, event.command_number) for event in cell.said(RoleChanged)]  # type: ignore[attr-defined]
        assert roles == [(CellRole.TRAINING, 1), (CellRole.SAMPLING, 2)]
        assert [event.role for event in cell.said(CellStarted)] == [CellRole.SAMPLING]  # type: ignore[attr-defined]


async def test_a_step_that_ends_leaves_the_cell_joining(tmp_path: Path) -> None:
    async with Led(tmp_path, Engine()) as cell:
        cell.command(CellRole.TRAINING)
        cell.say(*step(()))
        await cell.at(S.TRAINING)
        cell.say(
            sealed(),
            StepCommitted(
                core_epoch=1, step=1, attempt=1, merge_order=(), weights_hash="v", executions=2, grad_norm=0.0, loss=0.0,
                reward_mean=0.0,
            ),
        )  # fmt: skip
        await cell.at(S.JOINING)


async def test_interrupted_requests_wait_for_the_word_and_their_kv_is_kept_until_it_was_read(tmp_path: Path) -> None:
    engine = Engine(busy=True)
    async with Led(tmp_path, engine) as cell:
        cell.command(CellRole.TRAINING)
        await cell.at(S.EXPORTING)
        [drained] = cell.said(Drained)
        assert isinstance(drained, Drained)
        assert [(one.execution, one.tokens) for one in drained.requests] == [("g0.0.0", 50)]
        cell.say(
            MoveExecutions(epoch=1, number=2, source="c1", drained=(1, 1), moves=(Move("g0.0.0", "g0.0.0-abc.1", "c2", True),))
        )
        await cell.until(lambda: bool(cell.said(KvExported)))
        assert engine.kept == ["g0.0.0-abc.1"] and cell.states()[-1] is S.EXPORTING
        cell.say(
            KvImported(
                cell="c2", incarnation="i2", source="c1", command_epoch=1, command_number=1, execution="g0.0.0",
                rid="g0.0.0-abc.1", tokens=49, nbytes=1, took_us=1,
            )
        )  # fmt: skip
        await cell.at(S.JOINING)
        assert engine.kept == []


async def test_kv_that_nobody_asks_for_is_given_up_at_the_limit(tmp_path: Path) -> None:
    async with Led(tmp_path, Engine(busy=True), LifeLimits(exporting=0.1)) as cell:
        cell.command(CellRole.TRAINING)
        await cell.at(S.JOINING)
        assert [event.trigger for event in cell.said(LifeChanged)][-1] is T.TIMED_OUT  # type: ignore[attr-defined]


async def test_a_trainer_that_never_seals_is_a_lost_cell_that_comes_back(tmp_path: Path) -> None:
    async with Led(tmp_path, Engine(), LifeLimits(sealing=0.1)) as cell:
        cell.command(CellRole.TRAINING)
        cell.say(*step())
        await cell.at(S.TRAINING)
        cell.command(CellRole.SAMPLING)
        await cell.at(S.SAMPLING)
        assert cell.states()[-4:] == [S.SEALING, S.LOST, S.REFRESHING, S.SAMPLING]


async def test_an_offer_is_taken_while_the_cell_samples_and_refused_while_it_trains(tmp_path: Path) -> None:
    def offer(rid: str) -> KvExported:
        ticket = KvTicket("0", (1, 2, 1, 49, 8), b"where", b"ids")
        return KvExported(
            cell="c2", incarnation="i2", command_epoch=1, command_number=9, execution="g0.1.0", rid=rid, destination="c1",
            tokens=49, nbytes=ticket.nbytes, weight_version="0", ticket=ticket.to_bytes(), took_us=1,
        )  # fmt: skip

    async with Led(tmp_path, Engine()) as cell:
        cell.say(offer("a"))
        await cell.until(lambda: len(cell.said(KvImported)) == 1)
        cell.command(CellRole.TRAINING)
        await cell.at(S.JOINING)
        cell.say(offer("b"))
        await cell.until(lambda: len(cell.said(KvImported)) == 2)
        answers = [(event.rid, event.tokens, event.reason) for event in cell.said(KvImported)]  # type: ignore[attr-defined]
        assert answers == [("a", 49, ""), ("b", 0, "this cell does not sample")]


@pytest.mark.parametrize("ticket", [b"", b"no ticket", b"\x80"])
async def test_an_offer_that_cannot_be_read_is_answered_too(tmp_path: Path, ticket: bytes) -> None:
    """Its source would keep the pages until the lease ends, and the call would wait for them."""
    async with Led(tmp_path, Engine()) as cell:
        cell.say(
            KvExported(
                cell="c2", incarnation="i2", command_epoch=1, command_number=9, execution="g0.1.0", rid="a", destination="c1",
                tokens=49, nbytes=1, weight_version="0", ticket=ticket, took_us=1,
            )
        )  # fmt: skip
        await cell.until(lambda: bool(cell.said(KvImported)))
        [answer] = cell.said(KvImported)
        assert isinstance(answer, KvImported) and answer.tokens == 0 and answer.reason


async def test_an_engine_is_probed_once_it_goes_on(tmp_path: Path) -> None:
    """As SGLang does, this one answers nothing while it is paused: new weights that come meanwhile must not wait for a score."""

    class Silent(Engine):
        async def score(self, input_ids: Sequence[int]) -> tuple[float, ...]:
            await self._running.wait()
            return (-1.0,) * (len(input_ids) - 1)

    image = np.arange(64, dtype=np.uint8)
    async with Led(tmp_path, Silent()) as cell:
        cell.command(CellRole.TRAINING)
        await cell.at(S.JOINING)
        descriptor = cell._transfer.register(Region.of_array(image))
        cell.say(
            CoreElected(core_epoch=1, holder="p", cell="c0"),
            Published(
                core_epoch=1, version=1, weights_hash=hashlib.sha256(image.data).hexdigest(), descriptor=descriptor.to_bytes(),
                nbytes=64, probe_ids=np.array([1, 2, 3], np.int32), probe_logprobs=np.array([-1.0, -1.25], np.float32),
            ),
        )  # fmt: skip
        cell.command(CellRole.SAMPLING)
        await cell.at(S.SAMPLING)
        await cell.until(lambda: bool(cell.said(ProbeGap)))
        [gap] = cell.said(ProbeGap)
        assert isinstance(gap, ProbeGap)
        assert (gap.version, gap.tokens, gap.gap_max) == (1, 2, 0.25)


async def gone(cell: Led) -> list[LifeState]:
    """Its states once the agent has ended by itself."""
    async with asyncio.timeout(20):
        assert await cell.running is True
    return cell.states()


async def test_a_cell_that_leaves_lets_go_of_its_calls_first(tmp_path: Path) -> None:
    engine = Engine(busy=True)
    async with Led(tmp_path, engine) as cell:
        cell.command(CellRole.LEFT)
        await cell.at(S.EXPORTING)
        cell.say(
            MoveExecutions(epoch=1, number=2, source="c1", drained=(1, 1), moves=(Move("g0.0.0", "g0.0.0-abc.1", "c2", False),))
        )
        assert (await gone(cell))[2:] == [S.DRAINING, S.EXPORTING, S.GONE]
        [left] = cell.said(RoleChanged)
        assert isinstance(left, RoleChanged)
        assert (left.role, left.command_number, left.aborted_requests) == (CellRole.LEFT, 1, 1)


async def test_a_cell_that_leaves_does_not_wait_for_ever_for_where_its_calls_go(tmp_path: Path) -> None:
    async with Led(tmp_path, Engine(busy=True), LifeLimits(exporting=0.1)) as cell:
        cell.command(CellRole.LEFT)
        assert (await gone(cell))[-2:] == [S.EXPORTING, S.GONE]
        assert [event.role for event in cell.said(RoleChanged)] == [CellRole.LEFT]  # type: ignore[attr-defined]


async def test_a_member_that_leaves_stays_until_the_core_has_what_it_sealed(tmp_path: Path) -> None:
    """Its trainer's memory is read until the step is committed."""
    async with Led(tmp_path, Engine()) as cell:
        cell.command(CellRole.TRAINING)
        cell.say(*step(()))
        await cell.at(S.TRAINING)
        cell.command(CellRole.LEFT)
        await cell.at(S.SEALING)
        cell.say(sealed())
        await cell.until(lambda: cell.agent._orders.member is not None and cell.agent._orders.member.sealed)
        assert cell.states()[-1] is S.SEALING and not cell.running.done()
        cell.say(
            StepCommitted(
                core_epoch=1, step=1, attempt=1, merge_order=(), weights_hash="v", executions=2, grad_norm=0.0, loss=0.0,
                reward_mean=0.0,
            )
        )  # fmt: skip
        assert (await gone(cell))[-2:] == [S.SEALING, S.GONE]


async def test_a_cell_whose_engine_is_away_can_leave(tmp_path: Path) -> None:
    engine = Engine()
    async with Led(tmp_path, engine) as cell:
        engine.away = True
        await cell.at(S.LOST)
        cell.command(CellRole.LEFT)
        assert (await gone(cell))[-2:] == [S.LOST, S.GONE]


HAPPENINGS = ("train", "sample", "step", "sealed", "away", "back", "pause")


@hypothesis_settings(max_examples=15, suppress_health_check=list(HealthCheck))
@given(st.lists(st.sampled_from(HAPPENINGS), min_size=1, max_size=12), st.booleans())
async def test_whatever_happens_every_change_is_one_of_the_table(
    tmp_path_factory: pytest.TempPathFactory, happenings: list[str], leaves: bool
) -> None:
    engine = Engine(busy=len(happenings) % 2 == 0)
    limits = LifeLimits(draining=0.2, exporting=0.02, sealing=0.02, refreshing=5.0)
    async with Led(tmp_path_factory.mktemp("cell"), engine, limits) as cell:
        cell.say(SchedulerElected(epoch=1, holder="s"))
        stepped = False
        for what in happenings:
            match what:
                case "train" | "sample":
                    cell.command(CellRole.TRAINING if what == "train" else CellRole.SAMPLING)
                case "step" if not stepped:
                    stepped = True  # a second one would contradict the ledger
                    cell.say(*step())
                case "sealed":
                    cell.say(sealed())
                case "away" | "back":
                    engine.away = what == "away"
                case _:
                    await asyncio.sleep(
                        0.03
                    )  # lets limits pass and reports come round: other interleavings, nothing is waited for
        engine.away = False
        cell.command(CellRole.LEFT if leaves else CellRole.SAMPLING)
        if leaves:
            cell.say(MemberReleased(core_epoch=1, cell="c1", member_epoch=1, reason="lease"))
        await cell.at(S.GONE if leaves else S.SAMPLING)
        state = S.STARTING
        for event in cell.said(LifeChanged):
            assert isinstance(event, LifeChanged)
            assert (event.before, after(event.before, event.trigger)) == (state, event.after)
            state = event.after

"""A trainer that is killed, or paused until others have gone on, at each point of a step: the step ends, and each of its micro-steps
counts once. The bench moves real members and cores by hand on a log in memory; its replica's sum names what was counted
(test_trainers_protocol): the weights after n steps are n times the sum of all micro-steps, whatever died.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from consumers.trainer import core as core_module
from gyre_engine.events.training import (
    Checkpointed,
    Claimed,
    MemberJoined,
    MemberReleased,
    Published,
    Sealed,
    StepCommitted,
    StepOpened,
)
from gyre_engine.log.election import Deposed
from gyre_engine.transfer import PeerLost
from tests.unit.training.cast import LEASE_S, Cast, Clock, Killed, S, T


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(core_module, "time", made)
    return made


@pytest.fixture
def cast(tmp_path: Path, clock: Clock) -> Iterator[Cast]:
    made = Cast(tmp_path, clock)
    yield made
    made.close()


def released(cast: Cast) -> list[str]:
    return [event.cell for event in cast.events(MemberReleased)]  # type: ignore[attr-defined]


@pytest.mark.parametrize("at", [MemberJoined, Claimed, Sealed], ids=["joins", "computes", "seals"])
def test_a_satellites_trainer_that_is_killed_is_replaced_by_its_next_life(cast: Cast, at: type) -> None:
    """No lease is waited for: the next life takes an unsealed member's place; a sealed buffer that is gone sends its work back."""
    cast.open_step()
    cast.move("c1", until=at)
    cast.kill("c1")
    cast.finish(1)
    cast.check(1)
    assert released(cast) == (["c1"] if at is Sealed else [])


@pytest.mark.parametrize("at", [MemberJoined, Claimed], ids=["joins", "computes"])
def test_a_satellites_trainer_that_is_dead_for_good_is_released_when_its_lease_is_over(
    cast: Cast, clock: Clock, at: type
) -> None:
    """One that holds nothing holds nobody up."""
    cast.open_step()
    cast.move("c1", until=at)
    cast.gone(cast.satellites.pop("c1").transfer)  # type: ignore[attr-defined]
    others = [*cast.satellites.values(), cast.move_core]
    if at is Claimed:
        for _ in range(100):
            for mover in others:
                mover()
        assert cast.committed == 0 and released(cast) == []
        clock.now += LEASE_S + 0.1
    cast.until(lambda: cast.committed == 1, *others)
    cast.check(1)
    assert released(cast) == (["c1"] if at is Claimed else [])


def test_a_satellite_whose_buffer_the_core_has_read_may_die(cast: Cast) -> None:
    """Its next life stays out of the step that has its seal and joins the one after."""
    cast.open_step()
    cast.move("c1", until=Sealed)
    cast.until(lambda: ("c1", 1) in cast.core._merging.fetched, cast.move_core)
    cast.kill("c1")
    cast.finish(1)
    cast.check(1)
    (commit,) = cast.events(StepCommitted)
    assert "c1" in {cell for cell, _ in commit.merge_order} and released(cast) == []  # type: ignore[attr-defined]
    cast.open_step()
    cast.move("c1", until=Sealed)
    cast.finish(2)
    cast.check(2)


def test_a_satellite_that_leaves_and_dies_before_it_seals_gives_its_work_back_at_the_leases_end(cast: Cast, clock: Clock) -> None:
    """Its next life does not join, as its cell is told to sample: only the lease frees what the first life had."""
    cast.open_step()
    cast.move("c1", until=Claimed)
    cast.role("c1", S)
    cast.kill("c1")
    for _ in range(100):
        cast.satellites["c1"]()
        cast.move_core()
    assert cast.committed == 0
    clock.now += LEASE_S + 0.1
    cast.finish(1)
    cast.check(1)


@pytest.mark.parametrize("wakes", ["before the commit", "after the commit", "in the next step"])
@pytest.mark.parametrize("at", [MemberJoined, Claimed], ids=["joined", "computing"])
def test_a_paused_satellite_that_wakes_counts_nothing_twice(cast: Cast, clock: Clock, at: type, wakes: str) -> None:
    """SIGSTOP until the lease is over and others have its work (log-rules, 1); awake, it zeroes its sum and joins again."""
    cast.open_step()
    cast.move("c1", until=at)
    if at is Claimed:
        cast.satellites["c1"]()  # what it computes before it sleeps is in its sum
    asleep = cast.satellites.pop("c1")
    cast.until(lambda: "c1" in cast.core._progress, cast.move_core)
    clock.now += LEASE_S + 0.1
    if wakes == "before the commit":
        cast.move_core()
        cast.satellites["c1"] = asleep
    cast.finish(1)
    if wakes == "after the commit":
        asleep()
    cast.open_step()
    if wakes == "in the next step":
        cast.move("c2", until=Claimed)
    cast.satellites["c1"] = asleep
    cast.finish(2)
    cast.check(2)
    assert ("c1", 2) in {(event.cell, event.step) for event in cast.events(MemberJoined)}  # type: ignore[attr-defined]
    assert released(cast) == (["c1"] if at is Claimed else [])
    if at is Claimed and wakes == "before the commit":
        again = [(e.step, e.member_epoch) for e in cast.events(MemberJoined) if e.cell == "c1"]  # type: ignore[attr-defined]
        assert again[:2] == [(1, 1), (1, 2)]


def test_a_sealed_satellite_that_is_paused_while_the_core_reads_it_gives_its_work_back(
    cast: Cast, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The read ends at the lease (PeerLost, as a peer that stalls gives it); awake, it finds its seal void and joins again."""
    cast.open_step()
    cast.move("c1", until=Sealed)
    read = cast.core._merging._transfer.read

    def stalls(*_: Any, **__: Any) -> None:
        monkeypatch.setattr(cast.core._merging._transfer, "read", read)
        raise PeerLost("the peer did not answer within 5 s")

    monkeypatch.setattr(cast.core._merging._transfer, "read", stalls)
    cast.until(lambda: released(cast) == ["c1"], cast.move_core)
    cast.finish(1)
    cast.check(1)


POINTS = ("opened", "sealed", "read", "updated", "committed", "checkpointed", "published")


def die_at(cast: Cast, point: str) -> None:
    """Move everybody until the core dies at this point of its step."""
    others = list(cast.satellites.values())
    if point == "opened":
        cast.until(lambda: cast.said(Claimed), *others)
        return
    if point == "sealed":
        cast.until(lambda: cast.said(Sealed), *others)
        return
    if point == "read":
        cast.until(lambda: bool(cast.core._merging.fetched), *others, cast.move_core)
        return
    publisher, kinds = cast.core._publisher, {"committed": StepCommitted, "checkpointed": Checkpointed, "published": Published}
    if point == "updated":

        def dies() -> str:
            raise Killed

        publisher.export = dies  # type: ignore[method-assign]
    else:
        write, kind = cast.core._pen.write, kinds[point]

        def writes(events: Any) -> int:
            place = write(events)
            if isinstance(events[-1], kind):
                raise Killed
            return place

        cast.core._pen.write = writes  # type: ignore[method-assign]
    with pytest.raises(Killed):
        cast.until(lambda: False, *others, cast.move_core)


@pytest.mark.parametrize("every", [0, 1], ids=["no checkpoint", "a checkpoint a step"])
@pytest.mark.parametrize("point", POINTS)
def test_a_cores_trainer_that_is_killed_at_each_point_of_its_step(tmp_path: Path, clock: Clock, point: str, every: int) -> None:
    """The next one makes the committed steps again, voids the open attempt, and publishes what was committed and was not."""
    if point == "checkpointed" and not every:
        return
    cast = Cast(tmp_path, clock, every)
    try:
        cast.open_step()
        cast.finish(1)
        cast.open_step()
        die_at(cast, point)
        cast.next_core()
        final = point in ("committed", "checkpointed", "published")
        cast.read_on()
        assert cast.core_board.ledger.step == (2 if final else 1) and cast.core_board.ledger.open is None
        cast.finish(3)
        cast.check(3)
        attempts = [event.attempt for event in cast.events(StepOpened) if event.step == 2]  # type: ignore[attr-defined]
        assert attempts == ([1] if final else [1, 2])
    finally:
        cast.close()


def test_a_paused_core_that_wakes_behind_its_successor_commits_nothing(cast: Cast) -> None:
    """It had merged and was about to commit; what it says under its old epoch counts for nothing, and its next move ends it."""
    old, wake = cast.commits_behind_a_successor()
    late = [event for event in cast.events(StepCommitted) if event.core_epoch == 1]  # type: ignore[attr-defined]
    cast.read_on()
    assert len(late) == 1 and cast.core_board.ledger.step == 0
    cast.finish(1)
    cast.check(1)
    wake()
    with pytest.raises(Deposed, match="c0-2 rules"):
        old.advance()


MOVES = ("core", "c1", "c2", "kill c1", "kill c2", "pause c1", "wake c1", "lease", "kill core", "c1 leaves", "c1 comes")


@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(st.sampled_from(MOVES), max_size=40))
def test_whoever_dies_sleeps_or_wakes_when_each_micro_step_counts_once(
    tmp_path_factory: pytest.TempPathFactory, moves: list[str]
) -> None:
    clock = Clock()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(core_module, "time", clock)
        cast = Cast(tmp_path_factory.mktemp("cast"), clock, checkpoint_every=2)
        try:
            play(cast, clock, moves)
        finally:
            cast.close()


def play(cast: Cast, clock: Clock, moves: list[str]) -> None:
    """The moves, then all who live go on until three steps are committed."""
    asleep: list[Callable[[], bool]] = []
    cast.open_step()
    for move in moves:
        match move.split():
            case ["core"]:
                cast.move_core()
            case ["c1" | "c2" as cell]:
                if cell in cast.satellites:
                    cast.satellites[cell]()
            case ["kill", "core"]:
                cast.next_core()
            case ["kill", cell]:
                if cell in cast.satellites:
                    cast.kill(cell)
            case ["pause", cell]:
                asleep += [cast.satellites.pop(cell)] if cell in cast.satellites else []
            case ["wake", cell]:
                if asleep:
                    cast.satellites[cell] = asleep.pop()
            case ["lease"]:
                clock.now += LEASE_S + 0.1
            case [cell, "leaves"]:
                cast.role(cell, S)
            case [cell, "comes"]:
                cast.role(cell, T)
    for cell in ("c1", "c2"):
        cast.satellites.setdefault(cell, asleep.pop() if asleep else cast.satellite(cell))
        cast.role(cell, T)
    for step in (1, 2, 3):
        clock.now += LEASE_S + 0.1
        if cast.committed < step:
            cast.finish(step)
    cast.check(3)

"""Which burst was let begin, and who trains since before: from `commands` alone, in their order."""

from dataclasses import replace

from gyre_engine.events import Event
from gyre_engine.events.bursts import BeginBurst
from gyre_engine.events.cells import CellRole, SchedulerElected, SwitchRole
from gyre_engine.scheduling.bursts import Bursts, observe


def numbered(*events: Event) -> list[Event]:
    """Commands with rising numbers, as schedulers give them."""
    return [replace(e, number=n) if isinstance(e, (SwitchRole, BeginBurst)) else e for n, e in enumerate(events, 1)]


def fold(events: list[Event]) -> Bursts:
    bursts = Bursts()
    for event in events:
        bursts = observe(bursts, event)
    return bursts


def after(*events: Event) -> Bursts:
    return fold(numbered(*events))


def elected(epoch: int) -> SchedulerElected:
    return SchedulerElected(epoch=epoch, holder="s")


def switch(cell: str, to: CellRole, epoch: int = 1) -> SwitchRole:
    return SwitchRole(epoch=epoch, number=1, cell=cell, to=to, reason="", water_level=0, sampling_capacity=0)


def begin(step: int, epoch: int = 1) -> BeginBurst:
    return BeginBurst(epoch=epoch, number=1, step=step, reason="", water_level=0, sampling_capacity=0)


def test_no_burst_has_begun_before_the_first_word() -> None:
    assert after(elected(1), switch("a", CellRole.TRAINING)).begun == -1
    assert after(elected(1), begin(0)).begun == 0


def test_held_over_is_who_was_told_to_train_before_the_burst_began() -> None:
    first = (elected(1), switch("a", CellRole.TRAINING), begin(0), switch("b", CellRole.TRAINING))
    assert after(*first).held_over == {"a"}
    assert after(*first, begin(2)).held_over == {"a", "b"}
    back = (*first, begin(2), switch("b", CellRole.SAMPLING))
    assert after(*back).held_over == {"a"}
    assert after(*back, switch("b", CellRole.TRAINING)).held_over == {"a"}


def test_a_deposed_scheduler_lets_nothing_begin() -> None:
    assert after(elected(1), begin(0), elected(2), begin(3, epoch=1)).begun == 0
    assert after(elected(1), begin(0), elected(2), switch("a", CellRole.TRAINING, epoch=1), begin(3, epoch=2)).held_over == set()


def test_a_command_that_comes_twice_or_late_changes_nothing() -> None:
    """A second `begin` would hold over who joined since; a late switch would put a cell back that has left."""
    told = numbered(elected(1), switch("a", CellRole.TRAINING), begin(0), switch("b", CellRole.TRAINING))
    assert fold([*told, told[2], told[3], told[2]]) == fold(told)
    back = numbered(elected(1), switch("a", CellRole.TRAINING), begin(0), switch("a", CellRole.SAMPLING), begin(2))
    assert fold([*back[:4], back[1], back[4]]).held_over == set()

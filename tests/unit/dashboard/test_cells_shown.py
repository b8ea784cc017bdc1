"""The display shows each cell as the scheduler counts it."""

from __future__ import annotations

from consumers.dashboard.terminal import one_line
from consumers.dashboard.view import RunView
from gyre_engine.events.cells import CellLost, CellRole, CellStarted, LifeChanged, LifeState, LifeTrigger, RoleChanged


def started(cell: str, position: int, incarnation: str = "1") -> CellStarted:
    return CellStarted(
        cell=cell, position=position, incarnation=incarnation, engine="native", engine_url="u", capacity=4, role=CellRole.SAMPLING,
        weight_version=0,
    )  # fmt: skip


def test_a_cell_that_switches_is_lost_or_has_left_is_shown_as_that() -> None:
    view = RunView(steps=3)
    late = RoleChanged(cell="a", incarnation="0", role=CellRole.TRAINING, command_epoch=1, command_number=1)
    draining = LifeChanged(
        cell="a", incarnation="1", before=LifeState.SAMPLING, trigger=LifeTrigger.TOLD_TO_TRAIN, after=LifeState.DRAINING
    )
    left = RoleChanged(cell="c", incarnation="1", role=CellRole.LEFT, command_epoch=1, command_number=2)
    lost = CellLost(epoch=1, number=3, cell="b", incarnation="1", words=1, silent_us=1)
    for event in (started("a", 0), started("b", 1), started("c", 2), late):
        view.see(event)
    assert one_line(view).endswith("a:s b:s c:s  switches 0"), "a dead incarnation's word moves no cell"
    for event in (draining, left, lost):
        view.see(event)
    assert "a:s b:? c:l  switches 0" in one_line(view)

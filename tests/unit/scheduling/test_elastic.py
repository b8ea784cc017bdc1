"""The elastic policy against cases worked by hand from the rule w <= C_R - C_e (method.md, 2)."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gyre_engine.events.cells import CellRole
from gyre_engine.scheduling.elastic import Cell, Cluster, Demand, Switch, next_switch

LETTER = {"s": CellRole.SAMPLING, "t": CellRole.TRAINING, "x": CellRole.SWITCHING}


def cluster(roles: str, capacity: int = 8) -> Cluster:
    return Cluster(tuple(Cell(f"c{i}", i, LETTER[r]) for i, r in enumerate(roles)), capacity)


IDLE = Demand(water_level=0, to_dispatch=0, batch_ready=False, step_open=False, free_micro_steps=0, burst_open=True)


def demand(**changes: object) -> Demand:
    return dataclasses.replace(IDLE, **changes)  # type: ignore[arg-type]


def where(switch: Switch | None) -> tuple[str, str] | None:
    return (switch.cell, switch.to.value) if switch else None


@pytest.mark.parametrize(
    ("roles", "facts", "expected"),
    [
        # Three cells of 8: C_R = 24, the core leaves at w <= 16.
        ("sss", {"water_level": 17, "batch_ready": True}, None),
        ("sss", {"water_level": 16, "batch_ready": True}, ("c0", "training")),
        ("sss", {"water_level": 0}, None),
        # Serial: nothing while a cell switches.
        ("xss", {"water_level": 0, "batch_ready": True}, None),
        # The first satellite at C_R = 16: w <= 8, and only for micro-steps that nobody holds.
        ("tss", {"water_level": 8, "step_open": True, "free_micro_steps": 3}, ("c1", "training")),
        ("tss", {"water_level": 9, "step_open": True, "free_micro_steps": 3}, None),
        ("tss", {"water_level": 8, "step_open": True}, None),
        # The last sampling cell leaves when nothing is out there any more.
        ("tts", {"water_level": 0, "step_open": True, "free_micro_steps": 1}, ("c2", "training")),
        ("tts", {"water_level": 1, "step_open": True, "free_micro_steps": 1}, None),
        # After the burst the last satellite goes back first.
        ("tts", {"burst_open": False}, ("c1", "sampling")),
        ("tts", {"burst_open": False, "batch_ready": True}, ("c1", "sampling")),
        # Inside a burst everybody stays for the next batch.
        ("tts", {"batch_ready": True, "water_level": 30}, None),
        # The core stays where the next batch is ready and C_R = 16 serves w + what comes; else it goes back.
        ("tss", {"burst_open": False, "batch_ready": True, "water_level": 8, "to_dispatch": 8}, None),
        ("tss", {"burst_open": False, "batch_ready": True, "water_level": 9, "to_dispatch": 8}, ("c0", "sampling")),
        ("tss", {"burst_open": False}, ("c0", "sampling")),
        # One cell: it trains when all executions have ended.
        ("s", {"water_level": 1, "batch_ready": True}, None),
        ("s", {"water_level": 0, "batch_ready": True}, ("c0", "training")),
    ],
)
def test_the_rule(roles: str, facts: dict[str, object], expected: tuple[str, str] | None) -> None:
    assert where(next_switch(cluster(roles), demand(**facts))) == expected


demands = st.builds(
    Demand, water_level=st.integers(0, 60), to_dispatch=st.integers(0, 30), batch_ready=st.booleans(), step_open=st.booleans(),
    free_micro_steps=st.integers(0, 4), burst_open=st.booleans(),
)  # fmt: skip


@given(st.integers(1, 6), st.lists(demands, max_size=40))
def test_cells_in_training_are_always_a_prefix_and_every_switch_changes_something(count: int, history: list[Demand]) -> None:
    now = cluster("s" * count)
    for seen in history:
        switch = next_switch(now, seen)
        if switch is None:
            continue
        before = next(c for c in now.cells if c.name == switch.cell)
        assert before.role is not switch.to
        cells = tuple(dataclasses.replace(c, role=switch.to) if c.name == switch.cell else c for c in now.cells)
        now = dataclasses.replace(now, cells=cells)
        roles = [c.role for c in now.cells]
        assert roles == sorted(roles, key=lambda r: r is CellRole.SAMPLING)

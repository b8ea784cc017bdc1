"""A cell obeys the highest scheduler epoch and the ruling core, and no one else (log-rules 8)."""

import numpy as np

from gyre_engine.events import Event
from gyre_engine.events.cells import CellRole, SchedulerElected, SwitchRole
from gyre_engine.events.training import CoreElected, Published
from gyre_engine.scheduling.classes import ClassPlan
from producers.cells.orders import Orders, obey


def switch(epoch: int, number: int, to: CellRole, cell: str = "c1") -> SwitchRole:
    return SwitchRole(epoch=epoch, number=number, cell=cell, to=to, reason="", water_level=0, sampling_capacity=0)


def published(version: int, epoch: int = 1) -> Published:
    return Published(
        core_epoch=epoch, version=version, weights_hash="h", descriptor=b"", nbytes=0, probe_ids=np.zeros(0, np.int32),
        probe_logprobs=np.zeros(0, np.float32),
    )  # fmt: skip


def after(*events: Event, mu: int = 1, last: int = 9) -> Orders:
    orders = Orders("c1", ClassPlan(batch=1, mu=mu, phi=0, steps=last))
    for event in events:
        orders = obey(orders, event)
    return orders


def test_a_cell_samples_until_it_is_told_otherwise() -> None:
    assert after().role is CellRole.SAMPLING
    assert after(SchedulerElected(epoch=1, holder="a"), switch(1, 1, CellRole.TRAINING)).role is CellRole.TRAINING


def test_a_deposed_scheduler_is_not_obeyed() -> None:
    orders = after(SchedulerElected(epoch=1, holder="a"), SchedulerElected(epoch=2, holder="b"), switch(1, 5, CellRole.TRAINING))
    assert orders.role is CellRole.SAMPLING


def test_commands_to_other_cells_are_not_its_own() -> None:
    orders = after(SchedulerElected(epoch=1, holder="a"), switch(1, 1, CellRole.TRAINING, cell="c2"))
    assert orders.role is CellRole.SAMPLING


def test_weights_of_a_deposed_core_are_not_taken() -> None:
    orders = after(
        CoreElected(core_epoch=1, holder="a", cell="c0"),
        published(1),
        CoreElected(core_epoch=2, holder="b", cell="c0"),
        published(2),
    )
    assert orders.weights is not None
    assert orders.weights.version == 1


def test_samplers_take_weights_at_the_end_of_a_burst_and_the_last_ones() -> None:
    """mu = 3, 7 steps: versions 3 and 6 are publications to samplers; 7 is the last."""
    core = CoreElected(core_epoch=1, holder="a", cell="c0")
    taken = []
    for version in range(1, 8):
        orders = after(core, *(published(v) for v in range(1, version + 1)), mu=3, last=7)
        taken.append(orders.weights.version if orders.weights else None)
    # The first of a core is taken whatever its number: nothing else can be read.
    assert taken == [1, 1, 3, 3, 3, 6, 7]

"""Who reads a version from whom: a tree over the cells, and what is stepped over in it."""

from dataclasses import replace

import numpy as np
import pytest

from gyre_engine.events.cells import (
    CellHealth,
    CellRole,
    CellStarted,
    LifeChanged,
    LifeState,
    LifeTrigger,
    SwitchRole,
    WeightsHeld,
)
from gyre_engine.events.training import Published
from gyre_engine.scheduling.broadcast import CORE, Source, Tree, source
from gyre_engine.scheduling.cells import Fleet, observe
from gyre_engine.transfer import Descriptor

CELLS = tuple(f"c{i}" for i in range(9))


def test_a_tree_of_two():
    """By hand: c0 and c1 read from the core, c2 and c3 from c0, c4 and c5 from c1, c6 and c7 from c2, c8 from c3."""
    above = {cell: Tree(CELLS, 2).above(cell) for cell in CELLS}
    assert above == {
        "c0": (), "c1": (), "c2": ("c0",), "c3": ("c0",), "c4": ("c1",), "c5": ("c1",), "c6": ("c2", "c0"), "c7": ("c2", "c0"),
        "c8": ("c3", "c0"),
    }  # fmt: skip
    assert [cell for cell in CELLS if Tree(CELLS, 2).passes_on(cell)] == ["c0", "c1", "c2", "c3"]


@pytest.mark.parametrize("fanout", range(12))
@pytest.mark.parametrize("count", [1, 2, 7, 40])
def test_nobody_serves_more_than_the_fanout_and_all_hang_at_the_core(fanout, count):
    tree = Tree(tuple(f"c{i}" for i in range(count)), fanout)
    parents = [(tree.above(cell) or (CORE,))[0] for cell in tree.order]
    most = fanout or count
    assert all(parents.count(parent) <= most for parent in parents)
    assert {cell for cell in tree.order if tree.passes_on(cell)} == set(parents) - {CORE}
    for cell in tree.order:
        assert len(set(tree.above(cell)) | {cell}) == len(tree.above(cell)) + 1
        assert all(
            tree.order.index(a) > tree.order.index(b) for a, b in zip((cell, *tree.above(cell)), tree.above(cell), strict=False)
        )


def descriptor(port=1, digest=b"\x01" * 8, chunk=1024):
    return Descriptor("127.0.0.1", port, bytes(16), b"", 2048, chunk, digest).to_bytes()


PUBLISHED = Published(
    core_epoch=1, version=3, weights_hash="h3", descriptor=descriptor(), nbytes=2048, probe_ids=np.zeros(0, np.int32),
    probe_logprobs=np.zeros(0, np.float32),
)  # fmt: skip
FROM_CORE = Source(CORE, PUBLISHED.descriptor)


def held(cell="c2", **changes):
    return WeightsHeld(
        **{
            "cell": cell,
            "incarnation": "i",
            "version": 3,
            "weights_hash": "h3",
            "descriptor": descriptor(port=7),
            **changes,
        }
    )


def fleet(*events):
    """c2 and c0 sample with version 0; then the events."""
    started = [
        CellStarted(
            cell=cell, position=position, incarnation="i", engine="native", engine_url="", capacity=1, role=CellRole.SAMPLING,
            weight_version=0,
        )
        for cell, position in (("c2", 2), ("c0", 0))
    ]  # fmt: skip
    state = Fleet()
    for event in (*started, *events):
        state = observe(state, event)
    return state


def choose(said=(), cells=None, tried=(), patient=True):
    return source(("c2", "c0"), PUBLISHED, {s.cell: s for s in said}, cells or fleet(), tried, patient)


TRAINS = LifeChanged(cell="c2", incarnation="i", before=LifeState.DRAINING, trigger=LifeTrigger.DRAINED, after=LifeState.TRAINING)
ILL = CellHealth(cell="c2", incarnation="i", healthy=False)
TOLD = SwitchRole(epoch=1, number=1, cell="c2", to=CellRole.TRAINING, reason="", water_level=0, sampling_capacity=0)


def test_the_nearest_cell_that_has_it_is_read():
    assert choose([held("c0"), held("c2")]) == Source("c2", descriptor(port=7))


def test_one_that_is_about_to_have_it_is_waited_for_while_there_is_patience():
    assert choose([held("c0")]) is None
    assert choose([held("c0")], patient=False) == Source("c0", descriptor(port=7))
    assert choose(patient=False) == FROM_CORE


@pytest.mark.parametrize("event", [TRAINS, ILL, TOLD], ids=["trains", "is ill", "was told to leave"])
def test_one_that_will_not_have_it_is_stepped_over(event):
    assert choose([held("c0")], fleet(event)) == Source("c0", descriptor(port=7))


def test_one_that_could_not_be_read_is_stepped_over():
    assert choose([held("c0"), held("c2")], tried={"c2"}) == Source("c0", descriptor(port=7))
    assert choose([held("c0"), held("c2")], tried={"c2", "c0"}) == FROM_CORE


@pytest.mark.parametrize(
    "changes",
    [
        {"incarnation": "dead"}, {"version": 2}, {"weights_hash": "other"}, {"descriptor": descriptor(digest=b"\x02" * 8)},
        {"descriptor": descriptor(chunk=512)}, {"descriptor": b"torn"},
    ],
)  # fmt: skip
def test_one_whose_bytes_are_not_the_published_ones_is_never_read(changes):
    assert choose([replace(held(), **changes)], tried={"c0"}, patient=False) == FROM_CORE

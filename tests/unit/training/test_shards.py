"""The optimizer's state over the ranks of a cell against one process: the same bytes, and what one mesh wrote another reads."""

import numpy as np
import pytest

from gyre_engine.training.mesh import Mesh
from gyre_engine.training.replica import Hyper
from tests.contract.leaders import Leader, updates
from tests.contract.replicas import one_process

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.filterwarnings("ignore:.*tp_group is None:DeprecationWarning")

HYPER = Hyper(lr=1e-3, warmup_steps=2, weight_decay=0.1, clip=0.5)


def gradients(replica, count):
    """Zero between the slots, as a replica's are."""
    layout = replica.layout if isinstance(replica, Leader) else replica.parameters.layout
    end = max(slot.offset + -(-slot.size // 32) * 32 for slot in layout)
    flat = np.zeros((count, end), dtype=np.float32)
    for number, slot in enumerate(layout):
        flat[:, slot.offset : slot.offset + slot.size] = np.random.default_rng(number).standard_normal((count, slot.size))
    return flat


@pytest.mark.parametrize("mesh", [Mesh(data=2), pytest.param(Mesh(tensor=2), marks=pytest.mark.slow)], ids=["data", "tensor"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_shards_of_ranks_update_as_one_process_does_and_their_states_are_exchanged(folder, tmp_path, mesh, dtype):
    """Two updates on two ranks, two more on one process, two more on two ranks again: at each point the bytes of one process alone."""
    alone = one_process(folder("qwen3"), dtype=dtype)
    grads = gradients(alone, 6)[:, : len(alone.parameters.weights)]
    points, urls = [], [f"file://{tmp_path}/{k}" for k in range(3)]
    for at in range(0, 6, 2):
        points.append(updates(alone, grads[at : at + 2], HYPER, urls[at // 2 - 1] if at else "", urls[at // 2]))
    cell = Leader(folder("qwen3"), mesh, dtype=dtype)
    try:
        first = f"file://{tmp_path}/cell"
        assert cell.updates(grads[:2], HYPER, "", first) == points[0]
    finally:
        cell.end()
    between = one_process(folder("qwen3"), dtype=dtype)
    between.load(points[0][1], 5)
    assert updates(between, grads[2:4], HYPER, first, f"file://{tmp_path}/between") == points[1]
    cell = Leader(folder("qwen3"), mesh, dtype=dtype)
    try:
        cell.load(points[1][1], 7)
        assert cell.updates(grads[4:], HYPER, f"file://{tmp_path}/between") == points[2]
    finally:
        cell.end()

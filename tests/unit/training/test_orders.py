"""What crosses between the ranks of a cell comes out as it went in; nothing else crosses."""

import dataclasses
import pickle
from pathlib import Path

import msgpack
import numpy as np
import pytest

from gyre_engine.batching import ExecutionWork, Segment, pack
from gyre_engine.losses import LossConfig
from gyre_engine.training.metrics import Drift, StepMetrics
from gyre_engine.training.model.flat import Slot, Unit
from gyre_engine.training.optimizer.shard import Update
from gyre_engine.training.ranks.orders import BadOrder, decode, encode


def same(one, two):
    """Equal in kind and value, arrays by bytes and type."""
    if isinstance(one, np.ndarray):
        return (
            isinstance(two, np.ndarray) and one.dtype == two.dtype and one.shape == two.shape and one.tobytes() == two.tobytes()
        )
    if dataclasses.is_dataclass(one):
        return type(one) is type(two) and all(same(getattr(one, f.name), getattr(two, f.name)) for f in dataclasses.fields(one))
    if isinstance(one, (tuple, list)):
        return type(one) is type(two) and len(one) == len(two) and all(map(same, one, two))
    return type(one) is type(two) and one == two


def micro_step():
    ids = np.arange(9, dtype=np.int32)
    work = ExecutionWork(
        execution="e", segments=(Segment(ids[:5], -1), Segment(ids[5:], 0)), trained=np.array([6, 8], dtype=np.int32),
        logprobs=np.array([-1.5, -2.0], dtype=np.float32), versions=np.array([1, 2], dtype=np.int32), advantage=0.5, trained_tokens=2,
        sequences=np.zeros(2, dtype=np.int32),
    )  # fmt: skip
    (step,) = pack([work], 100)
    return step


@pytest.mark.parametrize(
    "value",
    [
        None, ["zero", ()], {0: 1.5, "a": [1, (2, b"3")]}, np.zeros((2, 0, 3), dtype=np.float32), float("inf"),
        LossConfig(name="gspo"), StepMetrics(tokens=3, drift={0: Drift(2, 1.5, 1.0, 0.25)}),
        (Slot("w", 16, (2, 3)), Unit("w", 16, 6, True)),
        Update(3, 1e-3, 0.1, (0.9, 0.95), 1e-8),
    ],
    ids=str,
)  # fmt: skip
def test_orders_come_out_as_they_went_in(value):
    assert same(decode(encode(value)), value)


def test_a_micro_step_comes_out_as_it_went_in():
    assert same(decode(encode(["accumulate", (micro_step(), LossConfig(), 3)])), ["accumulate", (micro_step(), LossConfig(), 3)])


@pytest.mark.parametrize("value", [object(), Path("/"), np.array([object()]), {1, 2}, len])
def test_other_kinds_do_not_cross(value):
    with pytest.raises(BadOrder, match="does not cross"):
        encode(value)


@pytest.mark.parametrize(
    "name", ["os:system", "gyre_engine.training.ranks.orders:encode", "gyre_engine.training.replica:nothing", "subprocess:Popen"]
)
def test_only_records_of_this_package_are_made(name):
    with pytest.raises(BadOrder, match="is no record"):
        decode(msgpack.packb(msgpack.ExtType(3, encode([name, {}]))))


def test_a_pickle_is_no_order():
    with pytest.raises(ValueError):
        decode(pickle.dumps(("zero", ())))

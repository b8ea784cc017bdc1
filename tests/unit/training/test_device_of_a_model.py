"""What a model computes with lies where its weights lie. On `meta`, which computes shapes alone: no GPU is needed to see a mix-up."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gyre_engine.training.model.shape import ModelShape
from gyre_engine.training.replica import ReplicaOptions
from tests.unit.training.test_model_shape import CONFIG

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.filterwarnings("ignore:.*tp_group is None:DeprecationWarning")


def test_angles_of_positions_lie_where_the_weights_lie(monkeypatch: pytest.MonkeyPatch) -> None:
    from gyre_engine.training.model.megatron import MegatronReplica
    from gyre_engine.training.model.tree_model import TreeModel, build_model

    shape = ModelShape.of_config(CONFIG)
    MegatronReplica(shape)  # joins the world that Megatron asks for
    model = build_model(shape, ReplicaOptions(device="meta"))
    seen: dict[str, Any] = {}
    monkeypatch.setattr(TreeModel, "_decoded", lambda self, hidden, **given: seen.update(given) or hidden)
    three = np.arange(3)
    assert model.hidden(three, three, np.full(3, 3, dtype=np.int32)).device.type == "meta"
    assert seen["rotary_pos_emb"].device.type == "meta"
    assert seen["attention_mask"].device.type == "cpu", "what rows see is made into what the device's kernel needs"

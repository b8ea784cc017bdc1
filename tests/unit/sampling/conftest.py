"""A tiny model of seeded random weights, and a second one of the same shape."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from gyre_engine.sampling.native.fresh import QUICKSTART, write_fresh_model
from gyre_engine.sampling.native.shape import ModelShape

TINY = replace(QUICKSTART, vocab=96, hidden=32, layers=2, heads=4, kv_heads=2, head_dim=8, ffn=48, max_context=512)


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def shape() -> ModelShape:
    return TINY


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_fresh_model(tmp_path_factory.mktemp("model") / "v7", TINY, seed=1, spread=0.25)


@pytest.fixture(scope="session")
def other_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_fresh_model(tmp_path_factory.mktemp("model") / "v8", TINY, seed=2, spread=0.25)

"""Cells of several ranks, and engines with arguments of one's own: the config reaches them, and what cannot work is told first."""

import json
from pathlib import Path

import pytest

from gyre_engine.config import Config, ConfigError, load_config, to_json, with_overrides
from gyre_engine.training.mesh import Mesh
from infra.sglang.launch import taken
from infra.stack import checks, wiring
from infra.stack.launch import Launch
from infra.stack.layout import StackFolder
from infra.stack.processes import run_processes

THREE_HEADS = {
    "model_type": "qwen3", "num_hidden_layers": 3, "hidden_size": 12, "intermediate_size": 8, "num_attention_heads": 6,
    "num_key_value_heads": 3, "head_dim": 2, "vocab_size": 10, "max_position_embeddings": 64, "rms_norm_eps": 1e-6,
}  # fmt: skip


def launched(*given: str) -> Launch:
    config = with_overrides(Config(), given)
    places = wiring.places(config, "127.0.0.1", range(7, 7 + config.cells.count))
    return Launch(
        run="r", config=to_json(config), bootstrap_servers="127.0.0.1:1", prefix="gyre", partitions=4, replication=1,
        proxy_url="http://127.0.0.1:2", cells=places, clickhouse_url="",
    )  # fmt: skip


def test_trainers_and_replays_are_told_the_ranks(tmp_path: Path) -> None:
    launch = launched("cells.tensor_parallel=2", "cells.pipeline_parallel=3", "cells.data_parallel=4")
    told = wiring.trainer(launch, StackFolder(tmp_path), "cell-1", "me")
    assert told.mesh == wiring.replay(launch.settings, "hash").mesh == Mesh(tensor=2, pipeline=3, data=4)
    assert told.mesh.ranks == 24
    assert told.scratch.endswith("/r/cell-1")


@pytest.mark.parametrize("key", ["tensor_parallel", "pipeline_parallel", "data_parallel"])
def test_fewer_than_one_rank_is_refused(key: str) -> None:
    with pytest.raises(ConfigError, match=f"cells.{key} must be at least 1, got 0"):
        with_overrides(Config(), [f"cells.{key}=0"])


def test_a_model_that_does_not_divide_is_told_before_the_start_with_every_size(tmp_path: Path) -> None:
    """6 heads, 3 key-value heads, 10 words, 8 rows and 3 layers: 2 does not divide the second and the last."""
    (tmp_path / "config.json").write_text(json.dumps(THREE_HEADS))
    given = (f"model.path={tmp_path}", "cells.tensor_parallel=2", "cells.pipeline_parallel=2", "cells.data_parallel=5")
    config = with_overrides(Config(), given)
    assert [(p.text, p.at) for p in checks._ranks(config)] == [
        (
            "cells.tensor_parallel is 2, but the model's 3 key-value heads cannot be divided by it: choose a divisor of 3",
            (("cells", "tensor_parallel"),),
        ),
        (
            "cells.pipeline_parallel is 2, but the model's 3 layers cannot be divided by it: choose a divisor of 3",
            (("cells", "pipeline_parallel"),),
        ),
    ]


def test_engine_args_end_the_command_of_the_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("infra.sglang.launch.PYTHON", Path("/bin/sh"))
    monkeypatch.setattr("infra.sglang.launch.find_bwrap", lambda: "bwrap")
    launch = launched("cells.count=1", "cells.engine=sglang", 'cells.engine_args=["--tp-size", "2"]')
    [engine] = [spec for spec in run_processes(launch, StackFolder(tmp_path)) if spec.name == "cell-0-engine"]
    assert engine.argv[-2:] == ("--tp-size", "2")


@pytest.mark.parametrize(
    "own", ["--model-path", "--model", "--port=1", "--weight-version", "--mem-fraction-static", "--sleep-on-idle"]
)
def test_engine_args_that_gyre_sets_are_refused_by_name(own: str) -> None:
    config = with_overrides(Config(), ["cells.engine=sglang", f"cells.engine_args={json.dumps(['--tp-size', '2', own, 'x'])}"])
    [problem] = checks._engine_args(config)
    assert problem.text == f"cells.engine_args: Gyre itself sets {own.partition('=')[0]}: remove it"


def test_other_arguments_pass() -> None:
    assert taken(["--tp-size", "2", "--dp-size=2", "--log-level-http", "info", "-1"]) == ()


def test_engine_args_without_sglang_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "exp.toml"
    path.write_text('[cells]\nengine_args = ["--tp-size", "2"]\n')
    with pytest.raises(ConfigError, match='line 2: cells.engine_args are for SGLang, but cells.engine is "native"'):
        load_config(path)


def test_a_gpu_that_is_not_there_is_told_before_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether one is there is torch's to say: what is told in each case is tried on any machine."""
    cuda = with_overrides(Config(), ["training.device=cuda", "cells.data_parallel=2"])
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    missing, ranks = (p.text for p in checks._device(cuda))
    assert "torch finds no GPU here" in missing and "set cells.*_parallel to 1" in ranks
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    assert not list(checks._device(with_overrides(Config(), ["training.device=cuda"])))
    assert not list(checks._device(with_overrides(Config(), ["cells.data_parallel=2"])))

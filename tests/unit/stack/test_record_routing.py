"""`cells.record_routing`: who is told of it, and what is said where nobody could follow."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gyre_engine.config import Config, with_overrides
from gyre_engine.experts import Experts
from infra.sglang.launch import TELLS_EXPERTS, sglang_on_gpu, taken
from infra.stack import checks, wiring

MIXTURE = {
    "model_type": "qwen3_moe", "num_hidden_layers": 3, "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 16,
    "norm_topk_prob": True, "mlp_only_layers": [0],
}  # fmt: skip


def config(tmp_path: Path, *overrides: str, **fields: object) -> Config:
    (tmp_path / "config.json").write_text(json.dumps(MIXTURE | fields))
    return with_overrides(Config(), [f"model.path={tmp_path}", "cells.record_routing=true", *overrides])


def test_the_proxy_knows_the_experts_where_they_are_recorded(tmp_path: Path) -> None:
    assert wiring.experts(config(tmp_path)) == Experts(8, 2, 16, True, (1, 2))
    assert wiring.experts(config(tmp_path, "cells.record_routing=false")) is None


@pytest.mark.parametrize("engine", ["native", "sglang"])
def test_a_mixture_on_an_engine_that_tells_is_taken(tmp_path: Path, engine: str) -> None:
    assert list(checks._routing(config(tmp_path, f"cells.engine={engine}"))) == []


@pytest.mark.parametrize(
    ("overrides", "fields", "words"),
    [
        ([], {"model_type": "qwen3"}, "has no experts"),
        (["cells.engine=scripted", "cells.script=answers.toml"], {}, "a scripted engine computes nothing"),
        (["cells.engine=sglang", "cells.engine_kv=hicache"], {}, "no experts of KV that moved"),
    ],
)
def test_who_could_not_tell_is_refused_by_name(
    tmp_path: Path, overrides: list[str], fields: dict[str, object], words: str
) -> None:
    [problem] = checks._routing(config(tmp_path, *overrides, **fields))
    assert problem.text.startswith("cells.record_routing: ") and words in problem.text


def test_dense_layers_among_mixtures_are_not_for_sglang(tmp_path: Path) -> None:
    sizes = {
        "hidden_size": 8, "intermediate_size": 8, "num_attention_heads": 2, "vocab_size": 9, "max_position_embeddings": 64,
        "rms_norm_eps": 1e-6,
    }  # fmt: skip
    [problem] = checks._dense_layers(config(tmp_path, "cells.engine=sglang", **sizes))
    assert "layers that have no experts" in problem.text
    assert list(checks._dense_layers(config(tmp_path, "cells.engine=sglang", mlp_only_layers=[], **sizes))) == []


def test_a_micro_step_that_the_log_would_not_take_is_told_before_the_start(tmp_path: Path) -> None:
    """8 of 128 experts in 48 layers are 384 bytes a token: 256k tokens of them are 96 MiB, where a record has at most 16."""
    big = {"num_hidden_layers": 48, "num_experts": 128, "num_experts_per_tok": 8, "mlp_only_layers": []}
    assert list(checks._routing(config(tmp_path, "model.context=32768", "sampling.max_tokens=512", **big))) == []
    [problem] = checks._routing(config(tmp_path, "model.context=262144", **big))
    assert "262144 tokens, with 384 bytes of experts each" in problem.text and "to 35108 at most" in problem.text


def test_a_server_is_started_so_that_it_can_tell() -> None:
    plain, telling = (
        sglang_on_gpu("python", "m", "0", host="h", port=1, environment={}, kv_capacity=64, max_batch=2, record_routing=on)
        for on in (False, True)
    )
    assert set(telling.argv) - set(plain.argv) == {TELLS_EXPERTS}
    assert taken([TELLS_EXPERTS]) == (TELLS_EXPERTS,)

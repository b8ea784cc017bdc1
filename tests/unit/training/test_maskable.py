"""Which models train trees, from the config.json as published."""

import json

import pytest

from gyre_engine.training.model.maskable import unmaskable, why_paths


@pytest.mark.parametrize(
    ("config", "kinds"),
    [
        ({"model_type": "llama"}, ()),
        ({"layer_types": ["full_attention"] * 4}, ()),
        ({"layer_types": ["linear_attention", "full_attention", "linear_attention"]}, ("linear_attention",)),
        ({"layer_types": ["sliding_attention", "full_attention", "mamba"]}, ("mamba", "sliding_attention")),
        ({"model_type": "qwen3_next", "full_attention_interval": 4}, ("linear_attention",)),
        ({"model_type": "qwen3_5", "text_config": {"layer_types": ["linear_attention"]}}, ("linear_attention",)),
    ],
)
def test_kinds_of_layers_that_cannot_be_masked(config, kinds):
    assert unmaskable(config) == kinds


def test_paths_are_trained_where_the_model_needs_it_or_the_config_wants_it(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"layer_types": ["full_attention"]}))
    assert why_paths("auto", tmp_path) == ""
    assert why_paths("paths", tmp_path) == 'batch.trees is "paths"'
    (tmp_path / "config.json").write_text(json.dumps({"layer_types": ["linear_attention", "full_attention"]}))
    for choice in ("auto", "paths"):
        assert why_paths(choice, tmp_path) == "the model has layers of linear_attention, which cannot be masked"

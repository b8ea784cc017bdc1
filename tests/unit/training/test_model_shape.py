"""Shapes from config.json, as transformers 4 and 5 write it, and what is refused."""

import pytest

from gyre_engine.experts import Experts
from gyre_engine.training.mesh import Mesh
from gyre_engine.training.model.shape import ModelShape
from gyre_engine.training.ranks.fit import misfits
from gyre_engine.training.replica import TrainingError

CONFIG = {
    "model_type": "qwen3",
    "num_hidden_layers": 4,
    "hidden_size": 160,
    "intermediate_size": 448,
    "num_attention_heads": 5,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "vocab_size": 650,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": True,
}


def test_both_ways_to_write_rope_give_the_same_shape():
    old = ModelShape.of_config({**CONFIG, "rope_theta": 1e6, "rope_scaling": None})
    new = ModelShape.of_config({**CONFIG, "rope_parameters": {"rope_type": "default", "rope_theta": 1e6}})
    assert old == new == ModelShape("qwen3", 4, 160, 448, 5, 1, 32, 650, 4096, 1e6, 1e-6, True)


def test_a_missing_head_dim_follows_from_the_hidden_size():
    assert ModelShape.of_config({**CONFIG, "head_dim": None, "num_attention_heads": 10}).head_dim == 16


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"model_type": "mamba"}, "'mamba' cannot be trained; supported: qwen3, qwen3_moe, qwen2, llama"),
        ({"rope_scaling": {"rope_type": "llama3"}}, "rope type 'llama3'"),
        ({"use_sliding_window": True}, "use_sliding_window"),
        ({"attention_bias": True}, "attention_bias"),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu'"),
        ({"model_type": "qwen3_moe", "num_experts": 4, "num_experts_per_tok": 5}, "num_experts_per_tok is 5"),
        ({"model_type": "qwen3_moe", "num_experts": 4, "num_experts_per_tok": 2}, "moe_intermediate_size"),
    ],
)
def test_what_would_not_be_trained_exactly_is_refused(change, words):
    with pytest.raises(TrainingError, match=words):
        ModelShape.of_config({**CONFIG, **change})


MIXTURE = {**CONFIG, "model_type": "qwen3_moe", "num_experts_per_tok": 2, "moe_intermediate_size": 64, "norm_topk_prob": True}


@pytest.mark.parametrize(
    ("change", "layers"),
    [
        ({"num_experts": 8}, (0, 1, 2, 3)),
        ({"num_local_experts": 8, "decoder_sparse_step": 2}, (1, 3)),
        ({"num_experts": 8, "decoder_sparse_step": 1, "mlp_only_layers": [0, 2]}, (1, 3)),
    ],
)
def test_which_layers_have_experts(change, layers):
    """As transformers' decoder layer decides: every decoder_sparse_step-th, but for mlp_only_layers."""
    assert ModelShape.of_config({**MIXTURE, **change}).experts == Experts(8, 2, 64, True, layers)


@pytest.mark.parametrize("change", [{}, {"num_experts": 8, "mlp_only_layers": [0, 1, 2, 3]}])
def test_a_mixture_without_a_layer_of_experts_is_dense(change):
    assert ModelShape.of_config({**MIXTURE, **change}).experts is None


def test_experts_are_not_divided_among_ranks():
    shape = ModelShape.of_config({**MIXTURE, "num_experts": 8, "num_attention_heads": 4, "num_key_value_heads": 2})
    assert not list(misfits(Mesh(data=2), shape))
    for key in ("tensor", "pipeline"):
        found = list(misfits(Mesh(**{key: 2}), shape))
        assert [where for where, _ in found] == [f"{key}_parallel"] and "not divided among ranks" in found[0][1]


def test_a_folder_without_a_config_is_refused(tmp_path):
    with pytest.raises(TrainingError, match=r"has no config.json"):
        ModelShape.of_folder(tmp_path)

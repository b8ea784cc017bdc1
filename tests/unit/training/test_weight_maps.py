"""Hugging Face <-> Megatron: a bit-exact round trip, and each row where Megatron looks for it."""

from dataclasses import replace

import pytest
import torch

from gyre_engine.experts import Experts
from gyre_engine.training.model.hf_shapes import hf_shapes
from gyre_engine.training.model.shape import ModelShape
from gyre_engine.training.model.weights import megatron_shapes, to_hf, to_megatron
from gyre_engine.training.replica import Untrainable

SHAPE = ModelShape("qwen3", 2, 12, 10, 4, 2, 3, 7, 64, 1e4, 1e-6, True)
EXPERTS = Experts(count=3, chosen=2, ffn=5, normed=True, layers=(1,))


def random_state(shape):
    """A Hugging Face state with bits of any kind, not only of finite numbers."""
    torch.manual_seed(0)
    q, kv, h, f = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim, shape.hidden, shape.ffn
    sizes = {"model.embed_tokens.weight": (shape.vocab, h), "model.norm.weight": (h,)}
    if not shape.tied:
        sizes["lm_head.weight"] = (shape.vocab, h)
    layer = {
        "self_attn.q_proj.weight": (q, h),
        "self_attn.k_proj.weight": (kv, h),
        "self_attn.v_proj.weight": (kv, h),
        "self_attn.o_proj.weight": (h, q),
        "input_layernorm.weight": (h,),
        "post_attention_layernorm.weight": (h,),
        "mlp.gate_proj.weight": (f, h),
        "mlp.up_proj.weight": (f, h),
        "mlp.down_proj.weight": (h, f),
    }
    if shape.qk_norm:
        layer |= {"self_attn.q_norm.weight": (shape.head_dim,), "self_attn.k_norm.weight": (shape.head_dim,)}
    if shape.qkv_bias:
        layer |= {f"self_attn.{part}_proj.bias": (q if part == "q" else kv,) for part in "qkv"}
    sizes |= {f"model.layers.{i}.{name}": size for i in range(shape.layers) for name, size in layer.items()}
    for i in shape.experts.layers if shape.experts else ():
        for part in ("gate", "up", "down"):
            del sizes[f"model.layers.{i}.mlp.{part}_proj.weight"]
            for e in range(shape.experts.count):
                size = (h, shape.experts.ffn) if part == "down" else (shape.experts.ffn, h)
                sizes[f"model.layers.{i}.mlp.experts.{e}.{part}_proj.weight"] = size
        sizes[f"model.layers.{i}.mlp.gate.weight"] = (shape.experts.count, h)
    bits = {name: torch.randint(-(2**31), 2**31 - 1, size, dtype=torch.int32) for name, size in sizes.items()}
    return {name: tensor.view(torch.float32) for name, tensor in bits.items()}


@pytest.mark.parametrize(
    ("family", "tied"),
    [("qwen3", True), ("qwen3", False), ("qwen3_moe", False), ("qwen3_moe", True), ("qwen2", True), ("llama", False)],
)
def test_the_round_trip_is_bit_exact(family, tied):
    shape = replace(SHAPE, family=family, tied=tied, experts=EXPERTS if family == "qwen3_moe" else None)
    state = random_state(shape)
    megatron = to_megatron(state, shape)
    assert {name: tuple(tensor.shape) for name, tensor in megatron.items()} == megatron_shapes(shape)
    back = to_hf(megatron, shape)
    assert list(back) == sorted(state)
    assert hf_shapes(shape) == {name: tuple(tensor.shape) for name, tensor in state.items()}
    assert all(torch.equal(back[name].view(torch.int32), state[name].view(torch.int32)) for name in state)


def test_a_groups_queries_key_and_value_lie_side_by_side():
    """4 heads in 2 groups of head_dim 3: rows q0 q1 k0 v0 q2 q3 k1 v1, by three."""
    state = random_state(SHAPE)
    marks = {"q": range(0, 12), "k": range(100, 106), "v": range(200, 206)}
    for part, rows in marks.items():
        name = f"model.layers.0.self_attn.{part}_proj.weight"
        state[name] = torch.tensor([[float(row)] * 12 for row in rows])
    fused = to_megatron(state, SHAPE)["decoder.layers.0.self_attention.linear_qkv.weight"]
    first = [*range(0, 6), 100, 101, 102, 200, 201, 202]
    second = [*range(6, 12), 103, 104, 105, 203, 204, 205]
    assert fused[:, 0].tolist() == [*first, *second]


def test_a_state_of_another_model_is_refused_by_name():
    state = random_state(SHAPE)
    del state["model.layers.1.self_attn.q_norm.weight"]
    with pytest.raises(Untrainable, match=r"missing \['model.layers.1.self_attn.q_norm.weight'\]"):
        to_megatron(state, SHAPE)

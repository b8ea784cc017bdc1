"""What a rank holds of a model: worked by hand, and that the parts make the whole again."""

from dataclasses import replace

import pytest
import torch

from gyre_engine.training.mesh import Mesh, Place
from gyre_engine.training.model.flat import allocate
from gyre_engine.training.model.shape import ModelShape
from gyre_engine.training.model.weights import megatron_shapes
from gyre_engine.training.ranks.fit import misfits
from gyre_engine.training.ranks.sharding import Sharding

SHAPE = ModelShape("qwen3", 2, 4, 6, 4, 2, 2, 8, 64, 1e4, 1e-6, True)


def numbered(shape):
    """The whole model; every weight its place in the flat buffer."""
    whole = allocate(megatron_shapes(shape), torch.zeros(1))
    whole.weights.copy_(torch.arange(len(whole.weights)))
    return whole


def of(flat, tensor, name):
    return next(slot for slot in flat.layout if slot.name == name).of(tensor)


def local(shapes):
    return allocate(shapes, torch.zeros(1))


def taken(mesh, place, shapes):
    whole, rank = numbered(SHAPE), local(shapes)
    Sharding(SHAPE, mesh, whole.layout).take(whole.weights, rank.weights, rank.layout, place)
    return whole, rank


@pytest.mark.parametrize("rank", [0, 1])
def test_a_tensor_rank_has_its_heads_its_words_and_its_half_of_gate_and_of_up(rank):
    """4 heads in 2 groups of dim 2: 8 rows of qkv a group; ffn 6: gate rows 0-5, up rows 6-11; 8 words."""
    shapes = {
        "decoder.layers.0.self_attention.linear_qkv.weight": (8, 4),
        "decoder.layers.0.self_attention.linear_proj.weight": (4, 4),
        "decoder.layers.0.mlp.linear_fc1.weight": (6, 4),
        "decoder.layers.0.mlp.linear_fc2.weight": (4, 3),
        "embedding.word_embeddings.weight": (4, 4),
        "decoder.layers.0.self_attention.q_layernorm.weight": (2,),
    }
    whole, part = taken(Mesh(tensor=2), Place(rank, 0, 0), shapes)

    def both(name):
        return of(whole, whole.weights, name), of(part, part.weights, name)

    qkv, own = both("decoder.layers.0.self_attention.linear_qkv.weight")
    assert torch.equal(own, qkv[8 * rank : 8 * rank + 8])
    proj, own = both("decoder.layers.0.self_attention.linear_proj.weight")
    assert torch.equal(own, proj[:, 4 * rank : 4 * rank + 4])
    fc1, own = both("decoder.layers.0.mlp.linear_fc1.weight")
    assert torch.equal(own, fc1[[[0, 1, 2, 6, 7, 8], [3, 4, 5, 9, 10, 11]][rank]])
    fc2, own = both("decoder.layers.0.mlp.linear_fc2.weight")
    assert torch.equal(own, fc2[:, 3 * rank : 3 * rank + 3])
    words, own = both("embedding.word_embeddings.weight")
    assert torch.equal(own, words[4 * rank : 4 * rank + 4])
    norm, own = both("decoder.layers.0.self_attention.q_layernorm.weight")
    assert torch.equal(own, norm)


def test_the_last_stage_counts_its_layers_from_0_and_holds_tied_words_too():
    shapes = {"decoder.layers.0.input_layernorm.weight": (4,), "output_layer.weight": (8, 4)}
    whole, part = taken(Mesh(pipeline=2), Place(0, 1, 0), shapes)
    assert torch.equal(
        of(part, part.weights, "decoder.layers.0.input_layernorm.weight"),
        of(whole, whole.weights, "decoder.layers.1.input_layernorm.weight"),
    )
    assert torch.equal(
        of(part, part.weights, "output_layer.weight"), of(whole, whole.weights, "embedding.word_embeddings.weight")
    )


def test_gradients_of_shared_work_count_once_and_those_of_heads_and_ends_are_summed():
    """Ones from both tensor ranks: a norm of the layer is computed twice alike, a norm of heads by halves."""
    mesh, whole = Mesh(tensor=2), numbered(SHAPE)
    whole.gradients.zero_()
    sharding = Sharding(SHAPE, mesh, whole.layout)
    shapes = {
        "decoder.layers.1.input_layernorm.weight": (4,),
        "decoder.layers.1.self_attention.k_layernorm.weight": (2,),
        "decoder.layers.1.mlp.linear_fc2.weight": (4, 3),
    }
    for rank in (0, 1):
        part = local(shapes)
        part.gradients.fill_(1.0)
        sharding.add(whole.gradients, part.gradients, part.layout, mesh.place(rank))
    assert of(whole, whole.gradients, "decoder.layers.1.input_layernorm.weight").tolist() == [1.0] * 4
    assert of(whole, whole.gradients, "decoder.layers.1.self_attention.k_layernorm.weight").tolist() == [2.0] * 2
    assert of(whole, whole.gradients, "decoder.layers.1.mlp.linear_fc2.weight").tolist() == [[1.0] * 6] * 4
    assert whole.gradients.sum() == 4 + 2 * 2 + 24


def test_ranks_stand_in_megatrons_order():
    """2 x 2 x 2: neighbours share matrices, then come the shares of a micro-step, then the stages."""
    places = [Mesh(2, 2, 2).place(rank) for rank in range(8)]
    assert [(p.tensor, p.data, p.stage) for p in places] == [
        (0, 0, 0), (1, 0, 0), (0, 1, 0), (1, 1, 0), (0, 0, 1), (1, 0, 1), (0, 1, 1), (1, 1, 1),
    ]  # fmt: skip


def test_what_does_not_divide_is_named_with_its_key():
    odd = replace(SHAPE, kv_heads=1, vocab=7, layers=3)
    found = list(misfits(Mesh(tensor=2, pipeline=2), odd))
    assert [key for key, _ in found] == ["tensor_parallel", "tensor_parallel", "pipeline_parallel"]
    assert "1 key-value heads" in found[0][1] and "7 words" in found[1][1] and "3 layers" in found[2][1]
    assert list(misfits(Mesh(tensor=2, pipeline=2, data=3), SHAPE)) == []

"""A replica that is told which experts the engine chose: their gradient, and a mixture's in float64, against transformers."""

from dataclasses import replace

import numpy as np
import pytest

from gyre_engine.batching import pack
from gyre_engine.experts import Experts
from gyre_engine.losses import LossConfig
from gyre_engine.training.replica import Untrainable
from tests.contract.replicas import (
    forest,
    gradient,
    gradient_by_name,
    one_process,
    reference,
    reference_gradients,
    reference_loss,
    relative,
)

transformers = pytest.importorskip("transformers")
torch = pytest.importorskip("torch")

pytestmark = pytest.mark.filterwarnings("ignore:.*tp_group is None:DeprecationWarning")

EXPERTS = Experts(count=6, chosen=2, ffn=24, normed=True, layers=(0, 2))
"""Of the tiny mixture."""


class Wide:
    """torch for a module of transformers that would compute norms and softmaxes in fp32 whatever its model's type is."""

    def __getattr__(self, name):
        return torch.float64 if name in ("float32", "float") else getattr(torch, name)


def test_in_float64_the_gradient_of_a_tree_over_experts_is_exact(folder, monkeypatch):
    from transformers.models.qwen3_moe import modeling_qwen3_moe

    def angles(x, position_ids):
        """Angles are fp32 everywhere, as positions are exact and inverse frequencies are not."""
        half = position_ids[..., None].float() * model.model.rotary_emb.inv_freq.float()
        both = torch.cat([half, half], -1)
        return both.cos().double(), both.sin().double()

    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder("qwen3_moe"), dtype=torch.float64, attn_implementation="eager", experts_implementation="eager"
    )
    monkeypatch.setattr(modeling_qwen3_moe, "torch", Wide())
    monkeypatch.setattr(model.model.rotary_emb, "forward", angles)
    sum(reference_loss(model, item) for item in forest()).backward()
    replica = one_process(folder("qwen3_moe"), dtype="float64")
    gradient(replica, pack(forest(), 1000))
    expected, found = reference_gradients(model), gradient_by_name(replica)
    assert max(relative(found[name], expected[name]) for name in expected) <= 1e-10


def recorded(item, seed):
    """The work with a random record of experts, of which every fifth token has none."""
    rng = np.random.default_rng(seed)
    routed = np.stack([[rng.permutation(6)[:2] for _ in range(2)] for _ in range(item.tokens)])
    routed[::5] = -1
    return replace(item, experts=EXPERTS.rows(routed)), routed


def force(model, routed):
    """Have the gates of transformers' model choose `routed` for the path that comes next, but where it says -1."""

    def forced(gate, layer):
        def forward(hidden):
            logits = torch.nn.functional.linear(hidden.reshape(-1, gate.hidden_dim), gate.weight)
            likely = torch.softmax(logits, -1)
            given = torch.from_numpy(routed()[:, layer])
            chosen = torch.where(given < 0, likely.topk(gate.top_k, -1).indices, given)
            weights = likely.gather(1, chosen)
            return logits, weights / weights.sum(-1, keepdim=True), chosen

        return forward

    for number, layer in enumerate(EXPERTS.layers):
        gate = model.model.layers[layer].mlp.gate
        gate.forward = forced(gate, number)


def rows_of_path(item, token):
    """Where the path up to and with a token stands in the work."""
    starts = np.cumsum([0, *[len(segment.ids) for segment in item.segments]])
    index = int(np.searchsorted(starts, token, side="right")) - 1
    rows = np.arange(starts[index], token + 1)
    while (index := item.segments[index].parent) >= 0:
        rows = np.concatenate([np.arange(starts[index], starts[index + 1]), rows])
    return rows


def test_recorded_experts_compute_and_their_gate_learns(replica_of, folder):
    """By transformers, its gates told the same experts: one forward pass a target, the weights the gate's own."""
    works, routed = zip(*[recorded(item, seed) for seed, item in enumerate(forest())], strict=True)
    model, current = reference(folder("qwen3_moe")), []
    force(model, lambda: current[0])
    total = 0
    for item, experts in zip(works, routed, strict=True):
        for target, behaviour in zip(item.trained.tolist(), item.logprobs.tolist(), strict=True):
            rows = rows_of_path(item, target)
            path = np.concatenate([segment.ids for segment in item.segments])[rows].astype(np.int64)
            current[:] = [experts[rows[:-1]]]
            ratio = (torch.log_softmax(model(torch.from_numpy(path[None, :-1])).logits[0, -1], -1)[path[-1]] - behaviour).exp()
            total = total - torch.minimum(ratio * item.advantage, ratio.clamp(0.8, 1.28) * item.advantage) / item.trained_tokens
    total.backward()
    replica = replica_of("qwen3_moe")
    free = gradient(replica, pack(forest(), 1000))
    forced = gradient(replica, pack(works, 1000))
    expected, found = reference_gradients(model), gradient_by_name(replica)
    assert max(relative(found[name], expected[name]) for name in expected) <= 1e-5
    assert np.linalg.norm(forced - free) / np.linalg.norm(free) > 0.01
    # Nothing of a record stays behind; what is computed again for the backward pass is routed alike.
    assert np.array_equal(gradient(replica, pack(forest(), 1000)), free)
    assert np.array_equal(gradient(replica_of("qwen3_moe", recompute=True), pack(works, 1000)), forced)


def test_a_record_of_what_the_gate_chooses_changes_no_bit(replica_of, folder):
    chosen, works = [], []
    model = reference(folder("qwen3_moe"))
    for layer in EXPERTS.layers:
        model.model.layers[layer].mlp.gate.register_forward_hook(lambda _, __, out: chosen.append(out[2].numpy()))
    for item in forest():
        ids, routed = np.concatenate([segment.ids for segment in item.segments]).astype(np.int64), []
        for token in range(item.tokens):
            chosen.clear()
            with torch.no_grad():
                model(torch.from_numpy(ids[rows_of_path(item, token)][None]))
            routed.append(np.stack([one[-1] for one in chosen]))
        works.append(replace(item, experts=EXPERTS.rows(np.stack(routed))))
    replica = replica_of("qwen3_moe")
    assert np.array_equal(gradient(replica, pack(works, 1000)), gradient(replica, pack(forest(), 1000)))


def test_a_cut_tree_with_recorded_experts_has_the_gradient_of_the_whole(replica_of):
    works = [recorded(item, seed)[0] for seed, item in enumerate(forest())]
    replica = replica_of("qwen3_moe", dtype="float64")
    first, second = gradient(replica, pack(works, 1000)), gradient(replica, pack(works, 20))
    assert np.linalg.norm(first - second) / np.linalg.norm(first) <= 1e-10


def test_a_record_that_does_not_fit_is_refused(replica_of, folder):
    (step,) = pack([recorded(forest()[0], 0)[0]], 1000)
    replica = one_process(folder("qwen3_moe"))
    with pytest.raises(Untrainable, match="routed experts: a record of 3 bytes a token"):
        replica.accumulate(replace(step, experts=step.experts[:, :3]), LossConfig())
    with pytest.raises(Untrainable, match="the model has none"):
        one_process(folder("qwen3")).accumulate(step, LossConfig())
    assert not replica.gradient_buffer().any()

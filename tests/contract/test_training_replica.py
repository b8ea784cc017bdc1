"""The TrainingReplica port, run on every implementation; transformers is the reference, sharing no code with them."""

import hashlib
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from gyre_engine.batching import ExecutionWork, Segment, pack
from gyre_engine.experts import Experts
from gyre_engine.losses import LossConfig, divisor_share
from gyre_engine.training.ranks.mesh import ONE, Mesh
from gyre_engine.training.replica import ReplicaOptions, TrainingError
from tests.contract.leaders import Leader, train

transformers = pytest.importorskip("transformers")
torch = pytest.importorskip("torch")

torch.set_num_threads(1)

pytestmark = pytest.mark.filterwarnings("ignore:.*tp_group is None:DeprecationWarning")

VOCAB = 62
SIZES = {
    "hidden_size": 40,
    "intermediate_size": 56,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": VOCAB,
    "max_position_embeddings": 256,
}
MIXTURE = {
    "num_hidden_layers": 3,
    "num_experts": 6,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 24,
    "mlp_only_layers": [1],
    "norm_topk_prob": True,
}
EXPERTS = Experts(count=6, chosen=2, ffn=24, normed=True, layers=(0, 2))
FAMILIES = ("qwen3", "qwen3_moe", "qwen2", "llama")
MESHES = {"one": ONE, "tensor": Mesh(tensor=2), "pipeline": Mesh(pipeline=2), "data": Mesh(data=2)}
"""One process, and cells of two; those start processes in every test, and test_cell_replica has the short of it."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A family's tiny model, saved by transformers; norms and biases away from their neutral values."""

    def save(family):
        path = tmp_path_factory.getbasetemp() / f"replica-{family}"
        if not path.exists():
            sizes = dict(SIZES)
            if family == "qwen2":  # has no head_dim of its own: 64 / 4
                sizes.update(hidden_size=64)
                del sizes["head_dim"]
            if family == "qwen3_moe":
                sizes.update(MIXTURE)
            config = transformers.AutoConfig.for_model(family, **sizes, tie_word_embeddings=family == "qwen3")
            torch.manual_seed(7)
            model = transformers.AutoModelForCausalLM.from_config(config)
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.add_(torch.randn_like(parameter) * (0.2 if parameter.dim() == 1 else 0.08))
            model.save_pretrained(path)
        return path

    return save


@pytest.fixture(params=[pytest.param(name, marks=pytest.mark.slow if name != "one" else ()) for name in MESHES])
def replica_of(request, folder):
    """(family, options) -> a loaded replica at version 3."""
    leaders = []

    def build(family="qwen3", **options):
        if family == "qwen3_moe" and max(MESHES[request.param].tensor, MESHES[request.param].pipeline) > 1:
            pytest.skip("experts are not divided among ranks: refused by name, see test_model_shape")
        if request.param == "one":
            return one_process(folder(family), **options)
        leaders.append(Leader(folder(family), MESHES[request.param], **options))
        return leaders[-1]

    yield build
    for leader in leaders:
        leader.end()


def one_process(path, **options):
    from gyre_engine.training.model.megatron import MegatronReplica
    from gyre_engine.training.model.shape import ModelShape

    replica = MegatronReplica(ModelShape.of_folder(path), ReplicaOptions(**options))
    replica.load(path, version=3)
    return replica


def reference(path, dtype=torch.float32):
    return transformers.AutoModelForCausalLM.from_pretrained(path, dtype=dtype, attn_implementation="eager")


def work(name, segments, trained, advantage, seed=0):
    rng = np.random.default_rng([seed, *name.encode()])
    trained = np.array(trained, dtype=np.int32)
    return ExecutionWork(
        execution=name,
        segments=tuple(Segment(rng.integers(0, VOCAB, size).astype(np.int32), parent) for parent, size in segments),
        trained=trained,
        logprobs=(-4 + 0.3 * rng.standard_normal(len(trained))).astype(np.float32),
        versions=rng.integers(1, 4, len(trained)).astype(np.int32),
        advantage=advantage,
        trained_tokens=len(trained),
    )


def forest():
    """Two executions: a tree of five segments whose fork trains both branches, and one of two roots."""
    tree = [(-1, 9), (0, 4), (1, 5), (1, 3), (0, 6)]
    roots = [(-1, 7), (-1, 5), (1, 4)]
    return [
        work("tree", tree, [4, 5, 9, 10, 12, 13, 15, 18, 19, 21, 26], 0.8),
        work("roots", roots, [3, 6, 9, 12, 15], -1.3),
    ]


def paths_of(item):
    """(token position in the execution, ids of its path up to and with it) of every trained token."""
    starts = np.cumsum([0, *[len(segment.ids) for segment in item.segments]])
    for token in item.trained.tolist():
        index = int(np.searchsorted(starts, token, side="right")) - 1
        path = item.segments[index].ids[: token - starts[index] + 1]
        while (index := item.segments[index].parent) >= 0:
            path = np.concatenate([item.segments[index].ids, path])
        yield path.astype(np.int64)


def reference_loss(model, item, temperature=1.0):
    """The two-level mean by hand, one forward pass a target: -(A / T) sum of min(r, clip(r)) as PPO states it."""
    total = 0
    for path, behaviour in zip(paths_of(item), item.logprobs.tolist(), strict=True):
        logits = model(torch.from_numpy(path[None, :-1])).logits[0, -1] / temperature
        ratio = (torch.log_softmax(logits, -1)[path[-1]] - behaviour).exp()
        clipped = ratio.clamp(0.8, 1.28)
        bounded = torch.minimum(ratio * item.advantage, clipped * item.advantage)
        total = total - bounded / item.trained_tokens
    return total


def gradient_by_name(replica):
    """The flat gradient under Hugging Face's names: the maps are permutations, so they carry gradients too."""
    from gyre_engine.training.model.weights import to_hf

    flat = torch.from_numpy(replica.gradient_buffer())
    layout = replica.layout if isinstance(replica, Leader) else replica.parameters.layout
    return to_hf({slot.name: slot.of(flat) for slot in layout}, replica.shape)


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
    with pytest.raises(TrainingError, match="routed experts: a record of 3 bytes a token"):
        replica.accumulate(replace(step, experts=step.experts[:, :3]), LossConfig())
    with pytest.raises(TrainingError, match="the model has none"):
        one_process(folder("qwen3")).accumulate(step, LossConfig())
    assert not replica.gradient_buffer().any()


def reference_gradients(model):
    """By the names of the files, where transformers keeps all experts of a layer in one parameter."""
    found = {}
    for name, parameter in model.named_parameters():
        layer = name.rpartition(".")[0]
        if name.endswith("experts.gate_up_proj"):
            for index, both in enumerate(parameter.grad):
                for part, grad in zip(("gate", "up"), both.chunk(2), strict=True):
                    found[f"{layer}.{index}.{part}_proj.weight"] = grad
        elif name.endswith("experts.down_proj"):
            found |= {f"{layer}.{index}.down_proj.weight": grad for index, grad in enumerate(parameter.grad)}
        else:
            found[name] = parameter.grad
    return found


def relative(left, right):
    return float(torch.linalg.vector_norm(left - right) / torch.linalg.vector_norm(right))


def gradient(replica, steps, loss=LossConfig(cap=1e9)):  # noqa: B008
    replica.zero()
    for step in steps:
        replica.accumulate(step, loss)
    return replica.gradient_buffer().copy()


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_logprobs_are_those_of_transformers(replica_of, folder, family, temperature):
    ids = np.random.default_rng(1).integers(0, VOCAB, 50).astype(np.int32)
    with torch.no_grad():
        logits = reference(folder(family))(torch.from_numpy(ids[None].astype(np.int64))).logits[0, :-1] / temperature
    expected = torch.log_softmax(logits, -1).gather(1, torch.from_numpy(ids[1:, None].astype(np.int64)))[:, 0]
    found = replica_of(family, temperature=temperature).logprobs(ids)
    assert np.abs(found - expected.numpy()).max() <= 1e-5


def test_target_logprobs_are_those_of_their_paths_and_change_nothing(replica_of, folder):
    """In the order of the targets, also where a micro-step is divided among ranks; neither gradients nor weights change."""
    works = [*forest(), *four_executions()]
    replica, model, (step,) = replica_of("qwen3", temperature=0.9), reference(folder("qwen3")), pack(works, 1000)
    before = replica.weights_hash()
    replica.zero()
    found = replica.target_logprobs(step)
    assert found.dtype == np.float32
    paths = {item.execution: list(paths_of(item)) for item in works}
    expected = np.empty(step.targets)
    with torch.no_grad():
        for name, first, count in step.executions:
            for index, path in enumerate(paths[name]):
                logits = model(torch.from_numpy(path[None, :-1])).logits[0, -1] / 0.9
                expected[first + index] = torch.log_softmax(logits, -1)[path[-1]]
            assert count == len(paths[name])
    assert np.abs(found - expected).max() <= 1e-5
    assert replica.target_logprobs(step).tobytes() == found.tobytes()
    assert replica.weights_hash() == before and not replica.gradient_buffer().any()


@pytest.mark.parametrize("family", FAMILIES)
def test_the_gradient_of_a_tree_is_that_of_its_paths(replica_of, folder, family):
    replica, model = replica_of(family, temperature=0.9), reference(folder(family))
    loss = sum(reference_loss(model, item, 0.9) for item in forest())
    loss.backward()
    metrics = [replica.accumulate(step, LossConfig(cap=1e9)) for step in pack(forest(), 1000)]
    assert sum(entry.loss for entry in metrics) == pytest.approx(float(loss.detach()), rel=1e-5)
    expected, found = reference_gradients(model), gradient_by_name(replica)
    assert set(found) == set(expected)
    assert max(relative(found[name], expected[name]) for name in expected) <= 1e-5
    whole = [torch.cat([one[name].flatten() for name in sorted(one)]) for one in (found, expected)]
    assert relative(*whole) <= 2e-6


def four_executions():
    return [
        work(f"e{count}", [(-1, 20 + count)], range(20, 20 + count), advantage)
        for count, advantage in ((3, 1.0), (50, -0.5), (7, 0.3), (200, -0.8))
    ]


@pytest.mark.parametrize(("dtype", "bound"), [("float32", 5e-6), ("float64", 1e-10)])
def test_c23_the_gradient_does_not_depend_on_the_cut(replica_of, dtype, bound):
    """C23: 3, 50, 7 and 200 trained tokens; 1 x 4, 2 x 2, 4 x 1, and two cells that take turns and are summed."""
    works = four_executions()
    replica = replica_of(dtype=dtype)
    cuts = {size: [step for i in range(0, 4, size) for step in pack(works[i : i + size], 999)] for size in (4, 2, 1)}
    assert [len(steps) for steps in cuts.values()] == [1, 2, 4]
    whole = gradient(replica, cuts[4])
    cells = sum(gradient(replica, cuts[1][first::2]) for first in (0, 1))
    for other in (gradient(replica, cuts[2]), gradient(replica, cuts[1]), cells):
        assert np.linalg.norm(other - whole) / np.linalg.norm(whole) <= bound


def test_c23_the_gradient_is_the_two_level_mean(replica_of, folder):
    """C23: by hand: each execution the mean over its own tokens, then the mean over the four."""
    works = four_executions()
    replica, model = replica_of(), reference(folder("qwen3"))
    gradient(replica, pack(works, 999))
    (sum(reference_loss(model, item) for item in works) / len(works)).backward()
    divisor = sum(divisor_share("two-level", item.trained_tokens, 1) for item in works)
    found = gradient_by_name(replica)
    named = dict(model.named_parameters())
    whole = [
        torch.cat([one.flatten() for one in parts])
        for parts in ([found[name] / divisor for name in named], [named[name].grad for name in named])
    ]
    assert relative(*whole) <= 5e-6


def test_a_cut_execution_has_the_gradient_of_the_whole(replica_of):
    replica = replica_of(dtype="float64")
    whole, cut = pack(forest(), 1000), pack(forest(), 20)
    assert len(cut) > len(whole) == 1
    first, second = gradient(replica, whole), gradient(replica, cut)
    assert np.linalg.norm(first - second) / np.linalg.norm(first) <= 1e-10


def test_c25_packed_neighbours_do_not_see_each_other(replica_of):
    """C25: B alone, B packed after A, and after an A of other tokens: the same gradient of B, to the last path."""
    replica = replica_of(dtype="float64")
    b = work("b", [(-1, 8), (0, 5), (0, 4)], [5, 9, 12, 14], 1.0)
    (own,) = pack([b], 1000)
    alone, likely = gradient(replica, [own]), likelihoods_of(replica, own, "b")
    for seed in (0, 1):
        a = work("a", [(-1, 30)], range(11, 30), 0.0, seed=seed)
        (packed,) = pack([a, b], 1000)
        beside = gradient(replica, [packed])
        assert np.linalg.norm(beside - alone) / np.linalg.norm(alone) <= 1e-10
        assert np.abs(likelihoods_of(replica, packed, "b") - likely).max() <= 1e-6


def likelihoods_of(replica, step, name):
    """The replica's log-probabilities of an execution's targets in a pack; of a cell, the loss of the whole, as `a` weighs nothing."""
    if isinstance(replica, Leader):
        return np.array([replica.accumulate(step, LossConfig(cap=1e9)).loss])
    model = replica._model
    found, _ = model.likelihoods(model.hidden(step.ids, step.position, step.end), step)
    ((first, count),) = [(first, count) for execution, first, count in step.executions if execution == name]
    return found.detach().numpy()[first : first + count]


def test_recomputation_changes_nothing(replica_of):
    """Neither the gradient nor the weights after updates: a replay need not say how the run computed."""
    steps = pack(forest(), 1000)
    kept, again = replica_of(), replica_of(recompute=True)
    assert np.array_equal(gradient(again, steps), gradient(kept, steps))
    one, two = (r.train(steps, LossConfig()) if isinstance(r, Leader) else train(r, steps, LossConfig()) for r in (kept, again))
    assert one == two


def test_logits_in_parts_change_nothing(folder, monkeypatch):
    replica = one_process(folder("qwen3"))
    plain = gradient(replica, pack(forest(), 1000))
    monkeypatch.setattr("gyre_engine.training.model.likelihood.LOGITS_AT_ONCE", 5 * VOCAB)
    parted = gradient(replica, pack(forest(), 1000))
    assert np.linalg.norm(parted - plain) / np.linalg.norm(plain) <= 1e-6


def test_metrics_count_tokens_clips_and_drift_by_staleness(replica_of):
    replica = replica_of()
    (step,) = pack(forest(), 1000)
    metrics = replica.accumulate(step, LossConfig(measure_entropy=True))
    assert (metrics.tokens, metrics.targets) == (step.tokens, 16)
    counts = {3 - version: int((step.versions == version).sum()) for version in (3, 2, 1)}
    assert {staleness: entry.tokens for staleness, entry in metrics.drift.items()} == counts
    assert 0 < metrics.entropy_sum / metrics.targets <= np.log(VOCAB) + 1e-6
    both = metrics + metrics
    assert (both.targets, both.drift[0].tokens) == (32, 2 * counts[0])


@pytest.mark.parametrize("family", FAMILIES)
def test_export_is_what_was_loaded_and_its_hash_is_stable(replica_of, folder, family):
    from safetensors.torch import load, load_file

    replica = replica_of(family)
    image = replica.export()
    saved, found = load_file(folder(family) / "model.safetensors"), load(image)
    assert set(saved) == set(found)
    assert all(torch.equal(saved[name].view(torch.int32), found[name].view(torch.int32)) for name in saved)
    again = replica_of(family)
    again.load(image, version=4)
    assert again.export() == image
    assert again.weights_hash() == hashlib.sha256(image).hexdigest()


def test_what_cannot_be_trained_is_refused_by_name(replica_of, folder):
    replica = replica_of()
    (step,) = pack([work("a", [(-1, 5)], [3], 1.0)], 10)
    with pytest.raises(TrainingError, match="does not fit a qwen3 of 2 layers"):
        replica.load(folder("qwen2"), version=4)
    replica.load(folder("qwen3"), version=0)
    with pytest.raises(TrainingError, match="was sampled at version"):
        replica.accumulate(step, LossConfig())
    with pytest.raises(TrainingError, match="temperature"):
        ReplicaOptions(temperature=0.0)


REPRODUCE = """
import pathlib, sys
sys.path.insert(0, sys.argv[2])
from tests.contract.test_training_replica import *
print(train(one_process(pathlib.Path(sys.argv[1])), pack(forest(), 30), LossConfig(cap=1e9)))
"""


def test_another_process_computes_the_same_bytes(replica_of, folder):
    path, root = folder("qwen3"), __file__.rsplit("/", 3)[0]
    here = replica_of()
    if isinstance(here, Leader):
        digests = [leader.train(pack(forest(), 30), LossConfig(cap=1e9)) for leader in (here, replica_of())]
        assert digests[0] == digests[1]
        return
    run = subprocess.run(
        [sys.executable, "-c", REPRODUCE, str(path), root], capture_output=True, text=True, timeout=300, check=False
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.split()[-1] == train(here, pack(forest(), 30), LossConfig(cap=1e9))

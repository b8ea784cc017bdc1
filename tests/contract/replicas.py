"""Tiny models of every family, work to train them on, and what transformers computes of it: the reference of the replica's tests."""

import numpy as np
import pytest

from gyre_engine.batching import ExecutionWork, Segment
from gyre_engine.losses import LossConfig
from gyre_engine.training.replica import ReplicaOptions
from tests.contract.leaders import Leader
from tests.works import first_leaves

transformers = pytest.importorskip("transformers")
torch = pytest.importorskip("torch")

torch.set_num_threads(1)

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
FAMILIES = ("qwen3", "qwen3_moe", "qwen2", "llama")


def saved(family, below):
    """A folder with the family's tiny model, saved by transformers once; norms and biases away from their neutral values."""
    path = below / f"replica-{family}"
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
    parts = tuple(Segment(rng.integers(0, VOCAB, size).astype(np.int32), parent) for parent, size in segments)
    return ExecutionWork(
        execution=name,
        segments=parts,
        trained=trained,
        sequences=first_leaves(parts, trained),
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


def four_executions():
    return [
        work(f"e{count}", [(-1, 20 + count)], range(20, 20 + count), advantage)
        for count, advantage in ((3, 1.0), (50, -0.5), (7, 0.3), (200, -0.8))
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


def gradient_by_name(replica):
    """The flat gradient under Hugging Face's names: the maps are permutations, so they carry gradients too."""
    from gyre_engine.training.model.weights import to_hf

    flat = torch.from_numpy(replica.gradient_buffer())
    layout = replica.layout if isinstance(replica, Leader) else replica.parameters.layout
    return to_hf({slot.name: slot.of(flat) for slot in layout}, replica.shape)


def gradient(replica, steps, loss=LossConfig(cap=1e9)):  # noqa: B008
    replica.zero()
    for step in steps:
        replica.accumulate(step, loss)
    return replica.gradient_buffer().copy()


def relative(left, right):
    return float(torch.linalg.vector_norm(left - right) / torch.linalg.vector_norm(right))

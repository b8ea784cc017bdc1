"""The reference policy in the core: scored with the policy's replica, which is then what it was; and what the loss makes of it."""

import dataclasses
import json
import shutil

import numpy as np
import pytest

from gyre_engine.batching import pack
from gyre_engine.losses import LossConfig
from gyre_engine.losses.names import UnusableLoss
from gyre_engine.training.reference import BorrowedReplica, misfit
from gyre_engine.training.replica import Untrainable
from tests.contract.replicas import (
    forest,
    gradient_by_name,
    one_process,
    paths_of,
    reference,
    relative,
)

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.filterwarnings("ignore:.*tp_group is None:DeprecationWarning")


@pytest.fixture
def other(folder, tmp_path):
    """A folder with the same model and other weights."""
    from safetensors.torch import load_file, save_file

    path = tmp_path / "other"
    shutil.copytree(folder("qwen3"), path)
    state = {name: tensor * 1.1 + 0.01 for name, tensor in load_file(path / "model.safetensors").items()}
    save_file(state, path / "model.safetensors", metadata={"format": "pt"})
    return path


def by_hand(model, item, temperature):
    """Log-probability and entropy at each trained token of an execution, one forward pass a target."""
    for path in paths_of(item):
        logits = model(torch.from_numpy(path[None, :-1])).logits[0, -1] / temperature
        logs = torch.log_softmax(logits, -1)
        yield logs[path[-1]], -(logs.exp() * logs).sum()


def test_the_reference_scores_and_the_replica_is_what_it_was(folder, other):
    replica = one_process(folder("qwen3"), temperature=0.9)
    before = replica.export()
    replica.gradient_buffer()[:] = 3.0
    steps = pack(forest(), 30)
    scorer = BorrowedReplica(replica, other)
    found = scorer.score(steps)
    with torch.no_grad():
        expected = [float(value) for item in forest() for value, _ in by_hand(reference(other), item, 0.9)]
    order = {name: number for number, name in enumerate(("tree", "roots"))}
    told = sorted(
        (order[name], int(step.ids[step.dst[i]]), float(scores[i]))
        for step, scores in zip(steps, found, strict=True) for name, first, count in step.executions
        for i in range(first, first + count)
    )  # fmt: skip
    tokens = [(number, int(path[-1])) for number, item in enumerate(forest()) for path in paths_of(item)]
    wanted = sorted((*token, value) for token, value in zip(tokens, expected, strict=True))
    assert [entry[:2] for entry in told] == [entry[:2] for entry in wanted]
    assert [entry[2] for entry in told] == pytest.approx([entry[2] for entry in wanted], abs=1e-5)
    assert (replica.export(), replica.version) == (before, 3)
    assert (replica.gradient_buffer() == 3.0).all()
    again = BorrowedReplica(one_process(folder("qwen3"), temperature=0.9), other).score(steps)
    assert [scores.tobytes() for scores in again] == [scores.tobytes() for scores in found]


def test_weights_come_back_where_scoring_fails(folder, other):
    replica = one_process(folder("qwen3"))
    before = replica.weights_hash()
    (step,) = pack(forest(), 1000)
    with pytest.raises(IndexError):
        BorrowedReplica(replica, other).score([step, dataclasses.replace(step, ids=step.ids + 10**6)])
    assert replica.weights_hash() == before


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
def test_the_gradient_with_both_terms_is_that_of_their_formulae(folder, other, estimator):
    """Policy + 0.2 mean of the estimates - 0.1 mean of the entropies, each over an execution's tokens; by autograd on transformers."""
    temperature, cap = 0.9, 1e9
    replica, model, fixed = one_process(folder("qwen3"), temperature=temperature), reference(folder("qwen3")), reference(other)
    works = [dataclasses.replace(forest()[0], advantage=0.0), forest()[1]]
    plain = pack(works, 1000)
    scores = BorrowedReplica(replica, other).score(plain)
    steps = [dataclasses.replace(step, reference=found) for step, found in zip(plain, scores, strict=True)]
    config = LossConfig(cap=cap, kl=0.2, kl_estimator=estimator, entropy=0.1)
    metrics = sum((replica.accumulate(step, config) for step in steps[1:]), replica.accumulate(steps[0], config))

    policy, divergence, spread = 0.0, 0.0, 0.0
    for item in works:
        with torch.no_grad():
            others = [value for value, _ in by_hand(fixed, item, temperature)]
        for (
            (current, entropy),
            old,
            other_,
        ) in zip(by_hand(model, item, temperature), item.logprobs.tolist(), others, strict=True):
            ratio, x = (current - old).exp(), other_ - current
            estimate = {"k1": -x, "k2": x * x / 2, "k3": x.exp() - 1 - x}[estimator]
            bounded = torch.minimum(ratio * item.advantage, ratio.clamp(0.8, 1.28) * item.advantage)
            policy = policy - bounded / item.trained_tokens
            divergence = divergence + 0.2 * estimate / item.trained_tokens
            spread = spread - 0.1 * entropy / item.trained_tokens
    (policy + divergence + spread).backward()
    parts = (metrics.policy_loss, metrics.kl_loss, metrics.entropy_loss)
    assert parts == pytest.approx([float(part.detach()) for part in (policy, divergence, spread)], rel=1e-4)
    assert metrics.loss == pytest.approx(sum(parts), rel=1e-6)
    found, named = gradient_by_name(replica), dict(model.named_parameters())
    assert max(relative(found[name], named[name].grad) for name in named) <= 2e-5


def test_entropies_in_parts_have_the_same_gradient(folder, monkeypatch):
    replica, config = one_process(folder("qwen3"), dtype="float64"), LossConfig(cap=1e9, entropy=0.1)

    def gradient():
        replica.zero()
        metrics = [replica.accumulate(step, config) for step in pack(forest(), 1000)]
        return replica.gradient_buffer().copy(), metrics[0].entropy_sum

    plain, entropy = gradient()
    monkeypatch.setattr("gyre_engine.training.model.likelihood.LOGITS_AT_ONCE", 5 * 62)
    parted, same = gradient()
    assert np.linalg.norm(parted - plain) / np.linalg.norm(plain) <= 1e-12
    assert same == pytest.approx(entropy, rel=1e-12)


def test_a_micro_step_without_a_reference_is_refused_and_adds_nothing(folder):
    replica = one_process(folder("qwen3"))
    (step,) = pack(forest(), 1000)
    with pytest.raises(UnusableLoss, match="loss.kl is 0.1, and this micro-step holds no log-probabilities of the reference"):
        replica.accumulate(step, LossConfig(kl=0.1))
    assert not replica.gradient_buffer().any()


def test_a_reference_of_another_vocabulary_or_shape_is_refused_by_name(folder, other):
    replica = one_process(folder("qwen3"))
    config = json.loads((other / "config.json").read_text())
    (other / "config.json").write_text(json.dumps({**config, "vocab_size": 64}))
    with pytest.raises(Untrainable, match=r"loss.reference: .*other has a vocabulary of 64 tokens, the policy one of 62"):
        BorrowedReplica(replica, other)
    (other / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 1, "max_position_embeddings": 4096}))
    assert "is of another shape than the policy (layers 1 instead of 2): " in misfit(replica.shape, other)
    (other / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 4096}))
    assert misfit(replica.shape, other) == ""
    assert "has no config.json" in misfit(replica.shape, other / "nowhere")

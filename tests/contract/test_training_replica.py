"""The TrainingReplica port, run on every implementation; transformers is the reference, sharing no code with them."""

import hashlib
import subprocess
import sys

import numpy as np
import pytest

from gyre_engine.batching import pack
from gyre_engine.losses import LossConfig, divisor_share
from gyre_engine.training.replica import ReplicaOptions, TrainingError
from tests.contract.leaders import Leader, train
from tests.contract.replicas import (
    FAMILIES,
    VOCAB,
    forest,
    four_executions,
    gradient,
    gradient_by_name,
    one_process,
    paths_of,
    reference,
    reference_gradients,
    reference_loss,
    relative,
    work,
)

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.filterwarnings("ignore:.*tp_group is None:DeprecationWarning")


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
from gyre_engine.batching import pack
from gyre_engine.losses import LossConfig
from tests.contract.leaders import train
from tests.contract.replicas import forest, one_process
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

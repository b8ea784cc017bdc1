"""A cell of several ranks against one process: real processes over gloo. The whole contract on them is slow: tests/contract."""

import os
import shutil
import signal
import time
from dataclasses import replace

import numpy as np
import pytest
from safetensors.torch import load_file, save_file

from gyre_engine.batching import pack
from gyre_engine.dead_end import DEAD_END
from gyre_engine.losses import LossConfig
from gyre_engine.losses.names import UnusableLoss
from gyre_engine.training.mesh import Mesh
from gyre_engine.training.reference import BorrowedReplica
from gyre_engine.training.replica import ReplicaOptions, TrainingError
from tests.contract.leaders import Leader, LeaderGone
from tests.contract.replicas import forest, four_executions, gradient, one_process

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.filterwarnings("ignore:.*tp_group is None:DeprecationWarning")

PAIRS = {"tensor": Mesh(tensor=2), "pipeline": Mesh(pipeline=2), "data": Mesh(data=2)}
FOURS = {"tensor and pipeline": Mesh(2, 2, 1), "pipeline and data": Mesh(1, 2, 2), "tensor and data": Mesh(2, 1, 2)}
KILL_LIMIT_S = 10.0


@pytest.fixture
def lead(folder):
    leaders = []

    def start(mesh, family="qwen3", **options):
        leaders.append(Leader(folder(family), mesh, **options))
        return leaders[-1]

    yield start
    for leader in leaders:
        leader.end()


def measured(replica, steps):
    """With all terms of the loss."""
    replica.zero()
    loss = LossConfig(cap=1e9, kl=0.1, entropy=0.02)
    metrics = [replica.accumulate(replace(step, reference=step.logprobs), loss) for step in steps]
    return np.array(replica.gradient_buffer()), metrics


@pytest.mark.parametrize("mesh", PAIRS.values(), ids=PAIRS)
@pytest.mark.parametrize(("family", "dtype", "bound"), [("qwen3", "float32", 5e-6), ("qwen2", "float64", 1e-10)])
def test_two_ranks_do_what_one_process_does(lead, folder, mesh, family, dtype, bound):
    """Tied embeddings and norms of heads (qwen3), biases and an output layer of its own (qwen2); trees with forks, cut and whole."""
    alone, cell = one_process(folder(family), dtype=dtype, temperature=0.9), lead(mesh, family, dtype=dtype, temperature=0.9)
    assert cell.layout == alone.parameters.layout
    for steps in (pack(forest() + four_executions(), 1000), pack(forest(), 20)):
        expected, told = measured(alone, steps)
        found, heard = measured(cell, steps)
        assert np.linalg.norm(found - expected) / np.linalg.norm(expected) <= bound
        for one, two in zip(told, heard, strict=True):
            assert (two.tokens, two.targets, two.clipped, set(two.drift)) == (
                one.tokens,
                one.targets,
                one.clipped,
                set(one.drift),
            )
            assert two.loss == pytest.approx(one.loss, rel=1e-5)
            assert two.entropy_sum == pytest.approx(one.entropy_sum, rel=1e-5)
            assert (two.kl_sum, two.kl_loss) == pytest.approx((one.kl_sum, one.kl_loss), rel=1e-4)
            assert two.kl_sum > 0 > two.entropy_loss
        assert all(np.abs(cell.target_logprobs(step) - alone.target_logprobs(step)).max() <= 1e-5 for step in steps)
    ids = np.arange(40, dtype=np.int32)
    assert np.abs(cell.logprobs(ids) - alone.logprobs(ids)).max() <= 1e-5
    assert (cell.export(), cell.weights_hash()) == (alone.export(), alone.weights_hash())


@pytest.mark.parametrize("mesh", PAIRS.values(), ids=PAIRS)
def test_updates_reach_the_ranks_and_come_out_the_same_every_time(lead, folder, mesh):
    steps, loss = pack(forest(), 30), LossConfig(cap=1e9)
    digests = {leader.train(steps, loss) for leader in (lead(mesh), lead(mesh))}
    assert len(digests) == 1
    after = lead(mesh)
    after.train(steps, loss)
    alone = one_process(folder("qwen3"))
    alone.load(after.export(), 5)
    assert np.abs(after.logprobs(steps[0].ids) - alone.logprobs(steps[0].ids)).max() <= 1e-5


def test_a_reference_is_scored_by_the_ranks_that_hold_the_policy(lead, folder, tmp_path):
    """Its weights go out to them and the policy's come back."""
    path = tmp_path / "other"
    shutil.copytree(folder("qwen3"), path)
    state = {name: tensor * 1.1 for name, tensor in load_file(path / "model.safetensors").items()}
    save_file(state, path / "model.safetensors", metadata={"format": "pt"})
    steps, cell, alone = pack(forest(), 30), lead(Mesh(tensor=2)), one_process(folder("qwen3"))
    own = [cell.target_logprobs(step) for step in steps]
    found, expected = cell.call("reference", path, steps), BorrowedReplica(alone, path).score(steps)
    for one, two, before, step in zip(expected, found, own, steps, strict=True):
        assert np.abs(one - two).max() <= 1e-5 < np.abs(two - before).max()
        assert cell.target_logprobs(step).tobytes() == before.tobytes()


@pytest.mark.slow
@pytest.mark.parametrize("mesh", FOURS.values(), ids=FOURS)
def test_four_ranks_do_what_one_process_does(lead, folder, mesh):
    steps = pack(forest() + four_executions(), 1000)
    expected, found = gradient(one_process(folder("qwen3")), steps), gradient(lead(mesh), steps)
    assert np.linalg.norm(found - expected) / np.linalg.norm(expected) <= 5e-6


@pytest.mark.slow
@pytest.mark.parametrize("mesh", PAIRS.values(), ids=PAIRS)
def test_recomputation_and_the_other_losses_agree(lead, folder, mesh):
    steps = pack(forest(), 1000)
    cell, again = lead(mesh), lead(mesh, recompute=True)
    alone = one_process(folder("qwen3"))
    for name in ("gspo", "cispo", "decoupled-ppo", "reinforce"):
        expected, found = (gradient(replica, steps, LossConfig(name=name)) for replica in (alone, cell))
        assert np.linalg.norm(found - expected) / np.linalg.norm(expected) <= 5e-6
    assert np.array_equal(gradient(again, steps), gradient(cell, steps))


def is_gone(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    with open(f"/proc/{pid}/stat") as stat:
        return stat.read().rsplit(")", 1)[1].split()[0] == "Z"


def await_end(pids):
    began = time.monotonic()
    while not all(map(is_gone, pids)):
        assert time.monotonic() - began < KILL_LIMIT_S, f"{pids} have not ended"
        os.sched_yield()


def test_a_rank_that_is_killed_ends_its_idle_leader_with_an_error(lead):
    leader = lead(Mesh(tensor=2))
    (rank,) = leader.ranks()
    os.kill(rank, signal.SIGKILL)
    leader.process.join(KILL_LIMIT_S)
    assert leader.process.exitcode == os.EX_SOFTWARE


def test_a_rank_that_no_start_mends_ends_its_leader_for_good(lead):
    """Each rank reads the same of the log: none of them can train on it the next time either."""
    leader = lead(Mesh(data=2))
    (step,) = pack(forest(), 1000)
    with pytest.raises((UnusableLoss, LeaderGone)):
        leader.accumulate(step, LossConfig(kl=0.1))  # without a reference
    leader.process.join(KILL_LIMIT_S)
    assert leader.process.exitcode == DEAD_END


def test_ranks_do_not_outlive_a_killed_leader(lead):
    leader = lead(Mesh(data=2))
    ranks = leader.ranks()
    leader.process.kill()
    await_end(ranks)


def test_ranks_end_with_their_leader(lead):
    leader = lead(Mesh(pipeline=2))
    ranks = leader.ranks()
    leader.end()
    assert leader.process.exitcode == 0
    await_end(ranks)


def test_a_rank_that_answers_no_more_is_an_error_within_the_limit(lead):
    leader = lead(Mesh(tensor=2), limit_s=2.0)
    (rank,) = leader.ranks()
    os.kill(rank, signal.SIGSTOP)
    began = time.monotonic()
    with pytest.raises((RuntimeError, LeaderGone)):
        gradient(leader, pack(forest(), 1000))
    assert time.monotonic() - began < KILL_LIMIT_S


def test_a_model_that_does_not_divide_is_refused_before_anything_starts(folder):
    from gyre_engine.training.opening import open_replica

    with pytest.raises(TrainingError, match="cells.tensor_parallel is 4, but the model's 2 key-value heads cannot be divided"):
        open_replica(folder("qwen3"), ReplicaOptions(), Mesh(tensor=4))

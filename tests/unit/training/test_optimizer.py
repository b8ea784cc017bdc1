"""AdamW against its formula in float64, and its state."""

import numpy as np
import pytest
import torch

from gyre_engine.training.flat import flatten
from gyre_engine.training.optimizer import AdamW
from gyre_engine.training.replica import Hyper, TrainingError

HYPER = Hyper(lr=0.01, warmup_steps=4, betas=(0.9, 0.95), eps=1e-6, weight_decay=0.1, clip=0.5)


def model():
    """A matrix, which decays, and a norm, which does not; 64-byte slots: 15 -> 16 and 3 -> 16 elements."""
    torch.manual_seed(3)
    named = [("norm", torch.nn.Parameter(torch.randn(3))), ("matrix", torch.nn.Parameter(torch.randn(5, 3)))]
    return flatten(named)


def gradients(count, size):
    return np.random.default_rng(5).standard_normal((count, size)).astype(np.float32)


def adamw(weights, grads, decayed, divisor):
    """Loshchilov and Hutter's update with global clipping and linear warm-up, in float64."""
    weights, m, v = weights.astype(np.float64), 0.0, 0.0
    decay = np.where(np.arange(len(weights)) < decayed, 0.1, 0.0)
    for step, grad in enumerate(grads.astype(np.float64) / divisor, start=1):
        grad = grad * min(1.0, 0.5 / np.sqrt((grad**2).sum()))
        lr = 0.01 * min(1.0, step / 4)
        m, v = 0.9 * m + 0.1 * grad, 0.95 * v + 0.05 * grad**2
        ratio = (m / (1 - 0.9**step)) / (np.sqrt(v / (1 - 0.95**step)) + 1e-6)
        weights = weights - lr * decay * weights - lr * ratio
    return weights


def test_parameters_lie_in_aligned_slots_with_the_decaying_ones_first():
    flat = model()
    assert [(slot.name, slot.offset) for slot in flat.layout] == [("matrix", 0), ("norm", 16)]
    assert (flat.decayed, len(flat.weights)) == (16, 32)
    assert flat.weights.data_ptr() % 64 == flat.gradients.data_ptr() % 64 == 0


def test_updates_follow_the_formula():
    flat = model()
    start, grads = flat.weights.numpy().copy(), gradients(6, 32)
    optimizer = AdamW(flat)
    metrics = [optimizer.apply(grad, 8, HYPER) for grad in grads]
    assert np.allclose(flat.weights.numpy(), adamw(start, grads, 16, 8), rtol=0, atol=2e-6)
    assert [entry.lr for entry in metrics] == pytest.approx([0.0025, 0.005, 0.0075, 0.01, 0.01, 0.01])
    norm = np.linalg.norm(grads[0].astype(np.float64) / 8)
    assert metrics[0].grad_norm == pytest.approx(norm, rel=1e-6)
    assert metrics[0].clip_scale == pytest.approx(min(1.0, 0.5 / norm), rel=1e-6)


@pytest.mark.parametrize("done", [0, 3])
def test_a_restored_optimizer_goes_on_bit_for_bit(done):
    first, second = model(), model()
    grads = gradients(6, 32)
    one, two = AdamW(first), AdamW(second)
    for grad in grads[:done]:
        one.apply(grad, 2, HYPER)
    second.weights.copy_(first.weights)
    two.restore(one.state())
    assert two.state() == one.state()
    for grad in grads[done:]:
        assert one.apply(grad, 2, HYPER) == two.apply(grad, 2, HYPER)
    assert first.weights.numpy().tobytes() == second.weights.numpy().tobytes()


def test_a_gradient_that_is_not_finite_changes_nothing():
    flat = model()
    optimizer = AdamW(flat)
    before, state = flat.weights.clone(), optimizer.state()
    with pytest.raises(TrainingError, match="update 1 is not finite"):
        optimizer.apply(np.full(32, np.nan, dtype=np.float32), 1, HYPER)
    assert torch.equal(flat.weights, before)
    assert optimizer.state() == state


def test_a_wrong_size_divisor_or_state_is_refused():
    optimizer = AdamW(model())
    with pytest.raises(TrainingError, match="32 gradients, got 1 and 31"):
        optimizer.apply(np.zeros(31, dtype=np.float32), 1, HYPER)
    with pytest.raises(TrainingError, match="divisor >= 1"):
        optimizer.apply(np.zeros(32, dtype=np.float32), 0, HYPER)
    other = AdamW(flatten([("m", torch.nn.Parameter(torch.zeros(64, 2)))]))
    with pytest.raises(TrainingError, match="another model"):
        optimizer.restore(other.state())

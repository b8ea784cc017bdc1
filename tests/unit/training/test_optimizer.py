"""AdamW against its formula in float64, its clipping against torch's, its schedules against theirs, and its state."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from gyre_engine.training.model import flat as flat_module
from gyre_engine.training.model.flat import Unit, flatten, shares, units_of
from gyre_engine.training.optimizer.adamw import AdamW
from gyre_engine.training.optimizer.schedule import rates
from gyre_engine.training.replica import Hyper, NonFiniteGradient, TrainingError, Untrainable

HYPER = Hyper(lr=0.01, warmup_steps=4, betas=(0.9, 0.95), eps=1e-6, weight_decay=0.1, clip=0.5)


def model(dtype=torch.float32):
    """A matrix, which decays, and a norm, which does not; 64-byte slots: 15 -> 16 and 3 -> 16 elements (of 4 bytes)."""
    torch.manual_seed(3)
    named = [("norm", torch.nn.Parameter(torch.randn(3).to(dtype))), ("matrix", torch.nn.Parameter(torch.randn(5, 3).to(dtype)))]
    return flatten(named)


def gradients(count, size):
    return np.random.default_rng(5).standard_normal((count, size)).astype(np.float32)


def inside(flat, values):
    """Without the elements between slots, which belong to no parameter."""
    return np.concatenate([values[slot.offset : slot.offset + slot.size] for slot in flat.layout])


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
    expected = adamw(start, grads, 16, 8)
    assert np.allclose(inside(flat, flat.weights.numpy()), inside(flat, expected), rtol=0, atol=2e-6)
    assert [entry.lr for entry in metrics] == pytest.approx([0.0025, 0.005, 0.0075, 0.01, 0.01, 0.01])
    norm = np.linalg.norm(grads[0].astype(np.float64) / 8)
    assert metrics[0].grad_norm == pytest.approx(norm, rel=1e-6)
    assert metrics[0].clip_scale == pytest.approx(min(1.0, 0.5 / norm), rel=1e-6)


def test_clipping_is_torchs_over_all_parameters_of_the_merged_gradient():
    flat, (grad,) = model(), gradients(1, 32)
    free = Hyper(lr=1.0, betas=(0.0, 0.0), eps=1e9, clip=0.5)  # with these AdamW moves by -lr / eps times the gradient
    before = flat.weights.clone()
    found = AdamW(flat).apply(grad, 2, free)
    parameter = torch.nn.Parameter(torch.zeros(32))
    parameter.grad = torch.from_numpy(grad) / 2
    assert found.grad_norm == pytest.approx(float(torch.nn.utils.clip_grad_norm_([parameter], 0.5)), rel=1e-6)
    assert found.clip_scale < 1
    expected = before.double() - parameter.grad.double() / 1e9
    assert np.array_equal(inside(flat, flat.weights.numpy()), inside(flat, expected.float().numpy()))


def cosine(t):
    return 0.5 * (1 + math.cos(math.pi * t))


SCHEDULES = {
    "constant": lambda k: 1.0,
    "linear": lambda k: 0.1 + 0.9 * (1 - min(1, (k - 4) / 16)),
    "cosine": lambda k: 0.1 + 0.9 * cosine(min(1, (k - 4) / 16)),
    "wsd": lambda k: 0.1 + 0.9 * (1 if k <= 15 else max(0, 1 - (k - 15) / 5)),
    "inverse-square-root": lambda k: math.sqrt(4 / k) if k <= 20 else 0.1,
}


@pytest.mark.parametrize("name", SCHEDULES)
def test_learning_rates_follow_their_schedules(name):
    """4 updates of warm-up, 20 to the least, which is a tenth; wsd comes down over its last 5."""
    hyper = Hyper(lr=0.02, min_lr=0.002, warmup_steps=4, schedule=name, decay_steps=20, wsd_steps=5)
    found = [rates(hyper, k).lr for k in range(1, 25)]
    expected = [0.02 * (k / 4 if k <= 4 else SCHEDULES[name](k)) for k in range(1, 25)]
    assert found == pytest.approx(expected, rel=1e-9)
    assert [rates(hyper, k).lr for k in reversed(range(1, 25))] == found[::-1]


@pytest.mark.parametrize(
    ("name", "coefficient"), [("linear", lambda t: t), ("cosine", lambda t: 0.5 * (1 - math.cos(math.pi * t)))]
)
def test_weight_decay_rises_to_its_end(name, coefficient):
    hyper = Hyper(weight_decay=0.1, weight_decay_schedule=name, weight_decay_end=0.3, decay_steps=10)
    expected = [0.1 + 0.2 * coefficient(min(1, k / 10)) for k in range(1, 13)]
    assert [rates(hyper, k).weight_decay for k in range(1, 13)] == pytest.approx(expected, rel=1e-9)
    assert rates(replace(hyper, weight_decay_schedule="constant"), 5).weight_decay == 0.1


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("done", [0, 3])
def test_a_restored_optimizer_goes_on_bit_for_bit(done, dtype, tmp_path):
    first, second = model(dtype), model(dtype)
    grads = gradients(6, len(first.weights))
    one, two = AdamW(first), AdamW(second)
    for grad in grads[:done]:
        one.apply(grad, 2, HYPER)
    one.save(str(tmp_path))
    second.weights.copy_(first.weights)
    two.restore(str(tmp_path))
    assert two.state_hash() == one.state_hash()
    for grad in grads[done:]:
        assert one.apply(grad, 2, HYPER) == two.apply(grad, 2, HYPER)
    assert torch.equal(first.weights, second.weights)
    assert two.state_hash() == one.state_hash()


def test_masters_of_bf16_weights_keep_what_their_rounding_would_lose():
    """Each update moves by lr; a step of bf16 near 1 is 2**-8 below and 2**-7 above: ten updates of 2**-12 only show when summed."""
    flat = flatten([("m", torch.nn.Parameter(torch.ones(2, 2, dtype=torch.bfloat16)))])
    assert flat.gradients.dtype is torch.float32
    hyper, optimizer = Hyper(lr=2.0**-12, eps=1e-12, clip=0.0), AdamW(flat)
    seen = []
    for _ in range(10):
        optimizer.apply(np.ones(len(flat.weights), dtype=np.float32), 1, hyper)
        seen.append(float(flat.weights[0]))
    assert seen[:7] == [1.0] * 7 and seen[9] == 1 - 2.0**-8


def test_an_update_of_bf16_weights_is_the_rounded_update_of_their_masters():
    flat = model(torch.bfloat16)
    start, grads = flat.weights.float(), gradients(4, len(flat.weights))
    optimizer = AdamW(flat)
    masters = [torch.nn.Parameter(slot.of(start).clone()) for slot in flat.layout]
    groups = [{"params": masters[:1], "weight_decay": 0.1}, {"params": masters[1:], "weight_decay": 0.0}]
    reference = torch.optim.AdamW(groups, lr=0.01, betas=(0.9, 0.95), eps=1e-6, foreach=False)
    for grad in grads:
        optimizer.apply(grad, 1, replace(HYPER, warmup_steps=0, clip=0.0))
        for slot, master in zip(flat.layout, masters, strict=True):
            master.grad = slot.of(torch.from_numpy(grad)).clone()
        reference.step()
        for slot, master in zip(flat.layout, masters, strict=True):
            assert torch.equal(slot.of(flat.weights), master.detach().to(torch.bfloat16))


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_gradient_that_is_not_finite_changes_nothing(bad):
    flat = model()
    optimizer = AdamW(flat)
    before, state = flat.weights.clone(), optimizer.state_hash()
    with pytest.raises(NonFiniteGradient, match="update 1 is not finite"):
        optimizer.apply(np.full(32, bad, dtype=np.float32), 1, HYPER)
    assert torch.equal(flat.weights, before)
    assert optimizer.state_hash() == state


def test_a_wrong_size_divisor_or_state_is_refused(tmp_path):
    optimizer = AdamW(model())
    with pytest.raises(TrainingError, match="32 gradients, got 1 and 31"):
        optimizer.apply(np.zeros(31, dtype=np.float32), 1, HYPER)
    with pytest.raises(TrainingError, match="divisor >= 1"):
        optimizer.apply(np.zeros(32, dtype=np.float32), 0, HYPER)
    AdamW(flatten([("matrix", torch.nn.Parameter(torch.zeros(64, 2)))])).save(str(tmp_path))
    with pytest.raises(Untrainable, match=r"another model: exp_avg/matrix should have \(15,\), .* holds one of \(128,\)"):
        optimizer.restore(str(tmp_path))


def test_pieces_cover_every_parameter_once_and_ranks_share_them(monkeypatch):
    """A matrix of 40 in units of 16, a norm of 3; by hand."""
    monkeypatch.setattr(flat_module, "UNIT", 16)
    flat = flatten([("norm", torch.nn.Parameter(torch.zeros(3))), ("matrix", torch.nn.Parameter(torch.zeros(8, 5)))])
    units = units_of(flat.layout, flat.decayed)
    assert units == (
        Unit("matrix.0", 0, 16, True), Unit("matrix.1", 16, 16, True), Unit("matrix.2", 32, 8, True), Unit("norm", 48, 3, False),
    )  # fmt: skip
    assert [len(run) for run in shares(units, 2)] == [1, 3]
    assert [len(run) for run in shares(units, 9)] == [0, 1, 0, 0, 0, 1, 0, 1, 1]

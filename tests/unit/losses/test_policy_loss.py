"""Policy losses and the terms beside them: against numpy written from the papers, against published values, and by hand."""

import math
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch

from gyre_engine.losses import LossConfig
from gyre_engine.losses.names import BUILT_IN, UnusableLoss
from gyre_engine.losses.policy import policy_loss
from gyre_engine.losses.surrogates import proximal_logprobs
from gyre_engine.losses.targets import Targets
from gyre_engine.losses.terms import kl_estimates
from tests.unit.losses.references import REFERENCES, differences


@dataclass
class Given:
    """Targets in numpy."""

    behaviour: np.ndarray
    weight: np.ndarray
    sequence: np.ndarray
    staleness: np.ndarray
    share: np.ndarray
    reference: np.ndarray

    def targets(self, dtype=torch.float64):
        real = {name: torch.tensor(getattr(self, name), dtype=dtype) for name in ("behaviour", "weight", "share", "reference")}
        return Targets(**real, sequence=torch.tensor(self.sequence), staleness=torch.tensor(self.staleness))


def some(count=60, spread=0.6, seed=0):
    """Targets of both signs, ratios from far below the clip to far above the cap, three trajectories, ages 0 to 3."""
    rng = np.random.default_rng(seed)
    behaviour = -rng.exponential(1.5, count)
    given = Given(
        behaviour, rng.normal(0, 1, count), np.sort(rng.integers(0, 3, count)), rng.integers(0, 4, count),
        rng.uniform(0.1, 1, count), behaviour + rng.normal(0, 0.3, count),
    )  # fmt: skip
    return behaviour + rng.normal(0, spread, count), given


def every_side():
    """Each sign and age with a ratio on each side of every bound: 0.8, 1, 1.2, 1.28 and 2."""
    ratios = np.array([0.1, 0.5, 0.79, 0.81, 0.95, 1.05, 1.19, 1.22, 1.26, 1.3, 1.5, 1.9, 2.1, 3.0, 6.0])
    ratio, weight, age = (grid.ravel() for grid in np.meshgrid(ratios, [-1.5, 0.5], range(5)))
    behaviour = -np.linspace(0.1, 4, len(ratio))
    sequence = np.arange(len(ratio)) // 3
    return behaviour + np.log(ratio), Given(behaviour, weight, sequence, age, np.ones(len(ratio)), behaviour)


SAMPLES = {"near": some(spread=0.05), "far": some(spread=0.6), "every side": every_side()}


def computed(current, given, config, entropy=None):
    leaf = torch.tensor(current, dtype=torch.float64, requires_grad=True)
    result = policy_loss(leaf, given.targets(), config, entropy)
    result.loss.backward()
    return replace(result, loss=result.loss.detach()), leaf.grad.numpy()


@pytest.mark.parametrize("name", BUILT_IN)
@pytest.mark.parametrize("sample", SAMPLES)
def test_a_loss_is_what_its_paper_says(name, sample):
    """Value and gradient."""
    current, given = SAMPLES[sample]
    reference = REFERENCES[name]
    result, gradient = computed(current, given, LossConfig(name))
    assert float(result.loss) == pytest.approx(reference(current, current, given), rel=1e-6, abs=1e-6)
    assert gradient == pytest.approx(differences(lambda c: reference(c, current, given), current), rel=1e-6, abs=1e-6)
    assert float(result.policy) == float(result.loss)
    assert not result.ratio.requires_grad and len(result.ratio) == len(result.clipped) == len(current)


def test_every_name_has_a_reference():
    assert set(REFERENCES) == set(BUILT_IN)


PUBLISHED = Given(
    np.array([-1.0, -1.0, -3.0]), np.array([1.0, -1.0, -4.0]), np.zeros(3, int), np.zeros(3, int), np.ones(3), np.zeros(0)
)
"""Of the tests of NeMo-RL and SkyRL (tests/train/algorithms/test_losses.py): ratios 0.5, 1 and 10, bounds 0.8 and 1.2."""
PUBLISHED_CURRENT = np.array([-1.69315, -1.0, -0.69741])


def test_published_values_of_the_clipped_loss():
    """SkyRL: per token -0.5, 1 and 40."""
    for name in ("grpo", "dapo"):
        result, _ = computed(PUBLISHED_CURRENT, PUBLISHED, LossConfig(name, clip_high=0.2))
        assert float(result.loss) == pytest.approx(-0.5 + 1 + 40, rel=1e-4)


def test_published_value_of_cispo():
    """SkyRL: mean of three -0.99768266666."""
    result, _ = computed(PUBLISHED_CURRENT, PUBLISHED, LossConfig("cispo", clip_high=0.2))
    assert float(result.loss) / 3 == pytest.approx(-0.99768266666, abs=1e-5)
    assert result.clipped.tolist() == [True, False, True]


def test_published_value_at_the_upper_bound():
    """Of a test of verl's vanilla loss: ratio 1.5, advantage 1, bound 1.3: -1.3."""
    one = Given(np.zeros(1), np.ones(1), np.zeros(1, int), np.zeros(1, int), np.ones(1), np.zeros(0))
    result, gradient = computed(np.log([1.5]), one, LossConfig("dapo", clip_high=0.3))
    assert (float(result.loss), gradient.tolist(), result.clipped.tolist()) == (pytest.approx(-1.3), [0.0], [True])


def test_published_ratios_of_sequences():
    """SkyRL on GSPO: log-ratios 0.1 and 0.3 give e^0.2 = 1.2214, clipped to 1.2; -0.1 and 0.1 give 1."""
    given = Given(np.zeros(4), np.ones(4), np.array([0, 0, 1, 1]), np.zeros(4, int), np.ones(4), np.zeros(0))
    result, gradient = computed(np.array([0.1, 0.3, -0.1, 0.1]), given, LossConfig("gspo", clip_high=0.2))
    assert result.ratio.tolist() == pytest.approx([math.exp(0.2)] * 2 + [1.0] * 2)
    assert float(result.loss) == pytest.approx(-(1.2 + 1.2 + 1 + 1))
    assert gradient == pytest.approx([0.0, 0.0, -1.0, -1.0])


@pytest.mark.parametrize(
    ("behaviour", "current", "versions", "now", "expected"),
    [
        ([-1.0, -2.0, -3.0], [-1.5, -2.5, -3.5], [0, 0, 0], 2, [-1.25, -2.25, -3.25]),
        ([-1.0], [-2.0], [4], 5, [-1.0]),
        ([-1.0], [-2.0], [3], 3, [-1.0]),
        ([-1.0, -2.0], [-1.5, -2.2], [0, 2], 4, [-1.375, -2.1]),
    ],
)
def test_published_proximal_policies(behaviour, current, versions, now, expected):
    """Of AReaL's tests (tests/test_prox_approx.py, "loglinear")."""
    found = proximal_logprobs(torch.tensor(current), torch.tensor(behaviour), now - torch.tensor(versions))
    assert found.tolist() == pytest.approx(expected, abs=1e-6)


def by_hand(name, ratios, weights, sequence=None, **config):
    count = len(ratios)
    numbers = np.array(sequence if sequence is not None else [0] * count)
    given = Given(np.zeros(count), np.array(weights, float), numbers, np.zeros(count, int), np.ones(count), np.zeros(0))
    result, gradient = computed(np.log(ratios), given, LossConfig(name, **config))
    return float(result.loss), gradient.tolist(), result.clipped.tolist()


def test_ppo_clips_pessimistically_and_caps_what_ppo_leaves_unbounded():
    """Gradient of -w r is -w r; clipped: 0. A weight of -1 at ratio 5 is truncated to 2."""
    loss, grads, clipped = by_hand("ppo", [1.0, 1.2, 1.3, 0.7, 0.7, 1.5, 5.0], [1, 1, 1, 1, -1, -1, -1])
    assert grads == pytest.approx([-1.0, -1.2, 0.0, -0.7, 0.0, 1.5, 2.0])
    assert clipped == [False, False, True, False, True, False, False]
    assert loss == pytest.approx(-1.0 - 1.2 - 1.28 - 0.7 + 0.8 + 1.5 + 2.0)


def test_grpo_clips_the_same_on_both_sides_and_has_no_cap():
    _, grads, _ = by_hand("grpo", [1.25, 1.1, 5.0], [1, 1, -1])
    assert grads == pytest.approx([0.0, -1.1, 5.0])


def test_reinforce_weighs_by_the_truncated_ratio():
    _, grads, clipped = by_hand("reinforce", [0.5, 1.0, 3.0], [1, -2, 1])
    assert grads == pytest.approx([-0.5, 2.0, -2.0])
    assert not any(clipped)


def test_cispo_without_a_lower_bound_bounds_from_above_alone():
    _, grads, clipped = by_hand("cispo", [0.1, 1.0, 3.0], [1, 1, 1], clip_low=1.0)
    assert grads == pytest.approx([-0.1, -1.0, -1.28])
    assert clipped == [False, False, True]


def test_gspo_has_one_ratio_a_trajectory():
    """Trajectory 0: ratios 1.21 and 1.0, geometric mean 1.1; trajectory 1: 1.69 and 1.0, mean 1.3, clipped."""
    _, grads, clipped = by_hand("gspo", [1.21, 1.69, 1.0, 1.0], [1, 1, 1, 1], sequence=[0, 1, 0, 1])
    assert grads == pytest.approx([-1.1, 0.0, -1.1, 0.0])
    assert clipped == [False, True, False, True]


@pytest.mark.parametrize("name", BUILT_IN)
def test_a_token_that_the_engine_held_for_impossible_gives_no_infinity(name):
    """A ratio of e^200 in float32. Where the loss has a cap, the gradient is the cap's."""
    current = torch.tensor([-1.0, -1.0], requires_grad=True)
    given = Given(np.array([-201.0, -201.0]), np.array([-1.0, 1.0]), np.array([0, 1]), np.zeros(2, int), np.ones(2), np.zeros(0))
    result = policy_loss(current, given.targets(torch.float32), LossConfig(name))
    result.loss.backward()
    assert torch.isfinite(current.grad).all() and bool(torch.isfinite(result.loss))
    if name in ("ppo", "reinforce"):
        assert float(current.grad[0]) == pytest.approx(2.0)


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
def test_the_divergence_is_weighed_by_shares_and_not_by_advantages(estimator):
    current, given = some()
    given = replace(given, weight=np.zeros(60))
    log_ratio = given.reference - current
    terms = {"k1": -log_ratio, "k2": log_ratio**2 / 2, "k3": np.exp(log_ratio) - 1 - log_ratio}
    slopes = {"k1": np.ones(60), "k2": -log_ratio, "k3": 1 - np.exp(log_ratio)}
    result, gradient = computed(current, given, LossConfig(kl=0.3, kl_estimator=estimator))
    assert float(result.loss) == pytest.approx(0.3 * (given.share * terms[estimator]).sum(), rel=1e-9)
    assert gradient == pytest.approx(0.3 * given.share * slopes[estimator], rel=1e-9)
    assert (float(result.kl), float(result.policy)) == (float(result.loss), 0.0)
    assert float(result.kl_sum) == pytest.approx(terms[estimator].sum())


@pytest.mark.parametrize(
    ("mean", "divergence", "published"),
    [
        (0.1, 0.005, {"k1": (0, 20), "k2": (0.002, 1.42), "k3": (0, 1.42)}),
        (1.0, 0.5, {"k1": (0, 2), "k2": (0.25, 1.73), "k3": (0, 1.7)}),
    ],
)
def test_published_bias_and_spread_of_the_estimators(mean, divergence, published):
    """Schulman's tables: q = N(0, 1), p = N(mean, 1); bias and standard deviation over the true divergence. By quadrature."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(80)
    weights = weights / weights.sum()
    current, reference = torch.tensor(-(nodes**2) / 2), torch.tensor(-((nodes - mean) ** 2) / 2)
    for name, (bias, spread) in published.items():
        found = kl_estimates(current, reference, name).numpy()
        expected = (weights * found).sum()
        deviation = math.sqrt((weights * (found - expected) ** 2).sum())
        assert (expected - divergence) / divergence == pytest.approx(bias, abs=1e-3)
        assert deviation / divergence == pytest.approx(spread, rel=0.01)


def test_the_entropy_is_made_larger_and_weighed_by_shares():
    current, given = some()
    entropy = torch.linspace(0.1, 2.0, 60, dtype=torch.float64, requires_grad=True)
    plain, _ = computed(current, given, LossConfig())
    result, _ = computed(current, given, LossConfig(entropy=0.01), entropy)
    expected = -0.01 * (given.share * np.linspace(0.1, 2.0, 60)).sum()
    assert float(result.entropy) == pytest.approx(expected)
    assert float(result.loss) == pytest.approx(float(plain.loss) + expected)
    assert entropy.grad.numpy() == pytest.approx(-0.01 * given.share)
    assert float(result.entropy_sum) == pytest.approx(np.linspace(0.1, 2.0, 60).sum())


def test_an_entropy_that_is_only_measured_changes_nothing():
    current, given = some()
    plain, without = computed(current, given, LossConfig())
    result, gradient = computed(current, given, LossConfig(measure_entropy=True), torch.ones(60, dtype=torch.float64))
    assert torch.equal(result.loss, plain.loss) and np.array_equal(gradient, without)
    assert float(result.entropy_sum) == 60


@pytest.mark.parametrize(
    ("missing", "config", "words"),
    [
        ("reference", {"kl": 0.1}, "loss.kl is 0.1, and this micro-step holds no log-probabilities of the reference"),
        ("share", {"kl": 0.1}, "loss.kl is 0.1, and this micro-step holds no shares"),
        ("share", {"entropy": 0.2}, "loss.entropy is 0.2, and this micro-step holds no shares"),
    ],
)
def test_a_term_without_what_it_needs_is_refused(missing, config, words):
    current, given = some()
    with pytest.raises(UnusableLoss, match=words):
        computed(current, replace(given, **{missing: np.zeros(0)}), LossConfig(**config), torch.ones(60, dtype=torch.float64))


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"name": "ppo2"}, 'loss.name has no "ppo2"; choose one of ppo, grpo, dr-grpo'),
        ({"clip_low": 0.0}, "0 < clip_low <= 1"),
        ({"cap": 0.5}, "cap >= 1"),
        ({"kl": -1.0}, "at least 0"),
        ({"kl_estimator": "k4"}, 'loss.kl_estimator has no "k4"; choose one of k1, k2, k3'),
    ],
)
def test_constants_that_cannot_be_are_refused_by_name(config, words):
    with pytest.raises(UnusableLoss, match=words):
        LossConfig(**config)

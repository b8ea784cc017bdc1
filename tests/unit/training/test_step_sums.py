"""What micro-steps measured adds up over micro-steps and members to what the step did."""

from __future__ import annotations

import pytest

from gyre_engine.events.training import Sealed
from gyre_engine.training.ledger.sums import drift_by_staleness, flat_metrics, mean_loss, step_totals
from gyre_engine.training.metrics import Drift, StepMetrics, Tails

FIRST = StepMetrics(
    tokens=50, targets=10, loss=3.0, policy_loss=2.0, kl_loss=1.5, entropy_loss=-0.5, clipped=1, entropy_sum=20.0, entropy_targets=10,
    kl_sum=4.0, kl_targets=10, moved_sum=0.5, tails=Tails((3, 2, 1), (0, 0, 0), 12.0), drift={0: Drift(10, 11.0, 12.0, 1.0)},
)  # fmt: skip
SECOND = StepMetrics(
    tokens=70, targets=30, loss=1.0, policy_loss=0.5, kl_loss=0.75, entropy_loss=-0.25, clipped=5, entropy_sum=40.0,
    entropy_targets=30, kl_sum=8.0, kl_targets=30, moved_sum=1.5, tails=Tails((1, 0, 0), (4, 2, 1), 3.0),
    drift={0: Drift(10, 9.0, 1.5, 3.0), 2: Drift(20, 20.0, 3.0, 4.0)},
)  # fmt: skip


def sealed(metrics: StepMetrics, cell: str = "c", **more: float) -> Sealed:
    return Sealed(
        cell=cell, member_epoch=1, step=1, attempt=1, micro_steps=(), buffer_hash="", descriptor=b"", loss_sum=metrics.loss,
        tokens=metrics.targets, packed_tokens=metrics.tokens, metrics=flat_metrics(metrics) | more,
    )  # fmt: skip


def test_micro_steps_add_up() -> None:
    both = FIRST + SECOND
    assert (both.tokens, both.targets, both.loss, both.policy_loss, both.kl_loss, both.entropy_loss) == (
        120,
        40,
        4.0,
        2.5,
        2.25,
        -0.75,
    )
    assert (both.clipped, both.clip_fraction, both.entropy_sum, both.kl_sum, both.moved_sum) == (6, 0.15, 60.0, 12.0, 2.0)
    assert both.tails == Tails((4, 2, 1), (4, 2, 1), 12.0)
    assert both.drift == {0: Drift(20, 20.0, 12.0, 4.0), 2: Drift(20, 20.0, 3.0, 4.0)}


TOTALS = {
    "targets": 40.0, "packed_tokens": 120.0, "clip_fraction": 6 / 40, "policy_loss": 2.5 / 4,
    "kl_loss": 2.25 / 4, "entropy_loss": -0.75 / 4,
    "entropy": 60 / 40, "reference_kl": 12 / 40, "kl": 2 / 40, "ratio_max": 12.0,
    "ratio_above_2": 4.0, "ratio_above_5": 2.0, "ratio_above_10": 1.0, "ratio_below_0.5": 4.0,
    "ratio_below_0.2": 2.0, "ratio_below_0.1": 1.0,
    "drift_0_tokens": 20.0, "drift_0_ratio_mean": 1.0, "drift_0_ratio_max": 12.0, "drift_0_gap_mean": 0.2,
    "drift_2_tokens": 20.0, "drift_2_ratio_mean": 1.0, "drift_2_ratio_max": 3.0, "drift_2_gap_mean": 0.2,
}  # fmt: skip
"""By hand: divisor 4; 6 of 40 targets clipped; drift at staleness 0: (11 + 9) / 20 and (1 + 3) / 20."""


@pytest.mark.parametrize(
    "members", [[FIRST + SECOND], [FIRST, SECOND], [SECOND, FIRST, StepMetrics()]], ids=["one", "two", "idle"]
)
def test_a_step_says_the_same_however_many_members_computed_it(members: list[StepMetrics]) -> None:
    seals = [sealed(metrics, f"c{i}", compute_s=1.0) for i, metrics in enumerate(members)]
    totals = step_totals(seals, divisor=4)
    assert totals.pop("members") == len(members)
    assert totals == pytest.approx(TOTALS)


def test_what_was_not_measured_is_not_said() -> None:
    totals = step_totals([sealed(StepMetrics(tokens=9, targets=3, loss=1.0))], divisor=1)
    assert "entropy" not in totals and "reference_kl" not in totals and totals["kl"] == 0.0


def test_seals_of_earlier_versions_still_give_their_totals() -> None:
    old = Sealed(
        cell="c", member_epoch=1, step=1, attempt=1, micro_steps=(), buffer_hash="", descriptor=b"", tokens=4, packed_tokens=9,
        metrics={"targets": 4.0, "clip_fraction": 0.25, "drift_1_tokens": 4.0, "drift_1_ratio_mean": 0.5, "drift_1_ratio_max": 2.0,
                 "drift_1_gap_mean": 0.1},
    )  # fmt: skip
    totals = step_totals([old], divisor=2)
    assert (totals["clip_fraction"], totals["drift_1_ratio_max"], totals["drift_1_tokens"]) == (0.25, 2.0, 4.0)
    assert not {"kl", "entropy", "ratio_max"} & totals.keys()


def test_drift_is_read_back_by_staleness() -> None:
    assert drift_by_staleness(TOTALS) == {
        0: {"tokens": 20.0, "ratio_mean": 1.0, "ratio_max": 12.0, "gap_mean": 0.2},
        2: {"tokens": 20.0, "ratio_mean": 1.0, "ratio_max": 3.0, "gap_mean": 0.2},
    }


def test_a_step_without_members_divides_by_nothing() -> None:
    totals = step_totals([], divisor=0)
    assert (totals["targets"], totals["clip_fraction"], totals["policy_loss"]) == (0.0, 0.0, 0.0)


def test_the_loss_is_divided_as_its_gradient_is() -> None:
    """Losses of 3 and 1 over a divisor of 40 tokens (`loss.aggregate = "token"`), whatever the number of executions."""
    seals = [sealed(FIRST, "a"), sealed(SECOND, "b")]
    assert mean_loss(seals, 40) == pytest.approx((3.0 + 1.0) / 40) and mean_loss(seals, 0) == 0.0
    totals = step_totals(seals, 40)
    assert sum(totals[part] for part in ("policy_loss", "kl_loss", "entropy_loss")) == pytest.approx(0.1)


def test_what_is_not_a_number_is_not_said() -> None:
    """The step of a poisoned micro-step, skipped."""
    seals = [sealed(StepMetrics(tokens=9, targets=3, loss=float("nan"), policy_loss=float("nan"), kl_loss=1.0))]
    assert mean_loss(seals, 4) is None
    totals = step_totals(seals, 4)
    assert "policy_loss" not in totals and totals["kl_loss"] == 0.25


NAN = float("nan")
POISONED = StepMetrics(
    tokens=9, targets=4, loss=NAN, policy_loss=NAN, kl_loss=1.0, entropy_sum=NAN, entropy_targets=4, moved_sum=NAN,
    tails=Tails(largest=NAN), drift={0: Drift(4, NAN, NAN, NAN)},
)  # fmt: skip
"""Of a micro-step whose forward is not a number: no weight of it is above or below a bound, and nothing was clipped."""


@pytest.mark.parametrize("members", [[SECOND, POISONED], [POISONED, SECOND]], ids=["last", "first"])
def test_a_member_whose_measures_are_not_numbers_takes_those_of_the_step_with_it(members: list[StepMetrics]) -> None:
    """Whichever seal stands first. What is no figure of its tokens is told: counts, the KL loss, the staleness it has none of."""
    totals = step_totals([sealed(metrics, f"c{i}") for i, metrics in enumerate(members)], 4)
    gone = {"policy_loss", "entropy", "kl", "ratio_max", "drift_0_ratio_mean", "drift_0_ratio_max", "drift_0_gap_mean"}
    assert not gone & totals.keys() and all(value == value for value in totals.values())
    assert (totals["drift_0_tokens"], totals["drift_2_ratio_max"], totals["kl_loss"]) == (14.0, 3.0, 1.75 / 4)
    assert totals["clip_fraction"] == pytest.approx(5 / 34)


@pytest.mark.parametrize("steps", [[SECOND, POISONED], [POISONED, SECOND]], ids=["last", "first"])
def test_a_poisoned_micro_step_is_not_hidden_by_the_others_of_its_member(steps: list[StepMetrics]) -> None:
    both = steps[0] + steps[1]
    assert all(value != value for value in (both.tails.largest, both.drift[0].ratio_max, both.drift[0].ratio_sum, both.moved_sum))


def test_a_seal_that_says_a_share_which_is_not_a_number_is_left_out_with_it() -> None:
    totals = step_totals([sealed(SECOND, clip_fraction=NAN)], 4)
    assert "clip_fraction" not in totals and totals["targets"] == 30.0

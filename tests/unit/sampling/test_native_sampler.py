"""Drawing ids: the distribution, the cuts, and the independence of requests."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from gyre_engine.sampling import SamplingParams
from gyre_engine.sampling.native.sampler import Plan, request_key, sample, uniforms

LOGITS = torch.tensor([[2.0, 1.0, 0.0, -1.0]])
TOTAL = math.exp(2) + math.exp(1) + 1 + math.exp(-1)


def draw(params: SamplingParams, count: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
    """Ids and log-probabilities at `count` evenly spread uniforms: each id's share is its probability, to 1 / count."""
    spread = (torch.arange(count, dtype=torch.float64) + 0.5) / count
    return sample(LOGITS.expand(count, -1), Plan.of([params] * count), spread)


def shares(params: SamplingParams) -> list[float]:
    ids, _ = draw(params, 10000)
    return (ids.bincount(minlength=4) / 10000).tolist()


def test_ids_come_as_often_as_their_probability() -> None:
    assert shares(SamplingParams()) == pytest.approx([math.exp(x) / TOTAL for x in (2, 1, 0, -1)], abs=2e-4)


def test_temperature_scales_the_logits() -> None:
    total = sum(math.exp(x / 0.5) for x in (2, 1, 0, -1))
    assert shares(SamplingParams(temperature=0.5)) == pytest.approx([math.exp(x / 0.5) / total for x in (2, 1, 0, -1)], abs=2e-4)


@pytest.mark.parametrize(
    ("params", "kept"),
    [
        (SamplingParams(top_k=2), [0, 1]),
        (SamplingParams(top_p=0.6), [0]),  # 0.644 of the mass is the first
        (SamplingParams(top_p=0.65), [0, 1]),
        (SamplingParams(min_p=0.1), [0, 1, 2]),  # e^-1 and e^-2 of the first are above 0.1, e^-3 is not
        (SamplingParams(top_k=3, top_p=0.65, min_p=0.1), [0, 1]),
    ],
)
def test_cuts_keep_the_likeliest_and_renormalise(params: SamplingParams, kept: list[int]) -> None:
    weights = [math.exp(2 - i) if i in kept else 0.0 for i in range(4)]
    assert shares(params) == pytest.approx([weight / sum(weights) for weight in weights], abs=2e-4)


def test_logprobs_are_those_before_the_cut() -> None:
    ids, logprobs = draw(SamplingParams(top_k=1), 10)
    assert ids.tolist() == [0] * 10
    assert logprobs.tolist() == pytest.approx([2 - math.log(TOTAL)] * 10, abs=1e-6)


def test_greedy_takes_the_likeliest_at_temperature_one() -> None:
    ids, logprobs = draw(SamplingParams(temperature=0.0), 10)
    assert ids.tolist() == [0] * 10
    assert logprobs.tolist() == pytest.approx([2 - math.log(TOTAL)] * 10, abs=1e-6)


def test_an_id_without_probability_is_never_drawn() -> None:
    logits = torch.tensor([[-torch.inf, 0.0, -torch.inf, 0.0, -torch.inf]]).expand(3, -1)
    ends = torch.tensor([0.0, 0.5, 1 - 2.0**-48], dtype=torch.float64)
    assert sample(logits, Plan.of([SamplingParams()] * 3), ends)[0].tolist() == [1, 3, 3]


def test_uniforms_are_splitmix64() -> None:
    """The published first outputs of SplitMix64 for seed 1234567, their upper 48 bits as a fraction."""
    published = [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431, 16408922859458223821]
    drawn = uniforms(np.full(5, 1234567, dtype=np.uint64), np.arange(5, dtype=np.uint64))
    assert drawn.tolist() == [(number >> 16) / 2**48 for number in published]


def test_requests_with_one_seed_differ_and_repeat() -> None:
    assert request_key(1, "a") == request_key(1, "a")
    assert (
        len({request_key(1, "a"), request_key(1, "b"), request_key(2, "a"), request_key(None, "a"), request_key(None, "a")}) == 5
    )

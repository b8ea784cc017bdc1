"""Where interrupted executions go on, and when moving their KV pays: against hand-worked cases and numpy's least squares."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gyre_engine.events.cells import OTHER_WEIGHTS, CellHealth, CellRole, Drained, Interrupted, KvExported, KvImported, Move
from gyre_engine.scheduling.cells import CellState
from gyre_engine.scheduling.migration import FORGET, Fit, KvCosts, plan_moves

POSITIVE = st.floats(0.1, 10.0)


@given(st.lists(st.tuples(POSITIVE, POSITIVE), min_size=3, max_size=20), POSITIVE, POSITIVE)
def test_what_lies_on_a_plane_is_predicted_exactly(points: list[tuple[float, float]], p: float, q: float) -> None:
    points = [*points, (1.0, 5.0), (5.0, 1.0)]
    fit = Fit()
    for u, v in points:
        fit = fit.add(u, v, p * u + q * v)
    assert fit.predict(3.0, 7.0) == pytest.approx(3 * p + 7 * q, rel=1e-6)


def test_noise_is_fitted_by_weighted_least_squares() -> None:
    rng = np.random.default_rng(0)
    u, v = rng.uniform(1, 9, 40), rng.uniform(1, 9, 40)
    y = 0.3 * u + 0.02 * v + rng.normal(0, 0.01, 40)
    fit = Fit()
    for row in zip(u, v, y, strict=True):
        fit = fit.add(*map(float, row))
    weights = np.sqrt(FORGET ** np.arange(39, -1, -1)) / y  # errors count relative to what was measured
    (p, q), *_ = np.linalg.lstsq(np.stack([u, v], 1) * weights[:, None], y * weights, rcond=None)
    assert fit.predict(4.0, 2.0) == pytest.approx(4 * p + 2 * q, rel=1e-9)


@given(st.lists(st.tuples(POSITIVE, POSITIVE, POSITIVE), min_size=1, max_size=12))
def test_a_longer_context_never_costs_less(rows: list[tuple[float, float, float]]) -> None:
    fit = Fit()
    for row in rows:
        fit = fit.add(*row)
    costs = [fit.predict(n, n * n) for n in (0.0, 1.0, 10.0, 100.0)]
    assert costs == sorted(costs) and costs[0] == 0.0


def exported(tokens: int, took_us: int, rid: str = "r") -> KvExported:
    return KvExported(
        cell="a", incarnation="1", command_epoch=1, command_number=1, execution="e", rid=rid, destination="b", tokens=tokens,
        nbytes=1000 * tokens, weight_version="3", ticket=b"", took_us=took_us,
    )  # fmt: skip


def imported(tokens: int, took_us: int, rid: str = "r") -> KvImported:
    return KvImported(
        cell="b", incarnation="1", source="a", command_epoch=1, command_number=1, execution="e", rid=rid, tokens=tokens,
        nbytes=1000 * tokens, took_us=took_us,
    )  # fmt: skip


def measured() -> KvCosts:
    """Moves: 50 ms + 1 ms a thousand tokens. Prefills: 1 ms a token."""
    costs = KvCosts()
    for number, tokens in enumerate((1000, 4000, 16_000)):
        rid = f"r{number}"
        costs = costs.observe(exported(tokens, 20_000, rid)).observe(imported(tokens, 30_000 + tokens, rid))
    prefills = tuple((0, n, 1000 * n) for n in (100, 500, 2000))
    return costs.observe(CellHealth(cell="b", incarnation="1", healthy=True, prefills=prefills))


def test_the_costs_are_those_that_were_measured() -> None:
    costs = measured()
    assert costs.move_s(8000) == pytest.approx(0.050 + 0.008, rel=1e-6)
    assert costs.prefill_s(8000) == pytest.approx(8.0, rel=1e-6)
    assert costs.moving_pays(60) and not costs.moving_pays(40)  # 50 ms of a move buy 50 tokens of prefill


def test_before_anything_is_measured_a_move_is_tried() -> None:
    assert KvCosts().moving_pays(10)


def failed(took_us: int, reason: str = "peer 10.0.0.1:7 did not answer", rid: str = "r") -> KvImported:
    return KvImported(
        cell="b", incarnation="1", source="a", command_epoch=1, command_number=1, execution="e", rid=rid, tokens=0, nbytes=0,
        took_us=took_us, reason=reason,
    )  # fmt: skip


def test_moves_that_fail_stop_being_chosen_where_what_they_take_is_more_than_they_spare() -> None:
    """8000 tokens: 8 s of prefill, or 0.058 s of a move. After three that arrived, a fourth of what a failure took is on each."""
    costs = measured()
    for _ in range(3):
        assert costs.moving_pays(8000)
        costs = costs.observe(exported(8000, 1_000_000, "f")).observe(failed(11_000_000, rid="f"))
    assert not costs.moving_pays(8000)  # 36 s lost
    assert costs.moving_pays(40_000)


def test_a_first_move_that_fails_counts_as_well() -> None:
    prefills = CellHealth(cell="b", incarnation="1", healthy=True, prefills=((0, 100, 100_000), (0, 2000, 2_000_000)))
    costs = KvCosts().observe(prefills).observe(exported(3000, 500_000)).observe(failed(3_000_000))
    assert not costs.moving_pays(3000) and costs.moving_pays(4000)


def test_a_failure_is_forgotten_with_the_drains_after_it() -> None:
    """3.5 s lost, 3.4 s of prefill: a tenth less, and it is tried again."""
    prefills = CellHealth(cell="b", incarnation="1", healthy=True, prefills=((0, 100, 100_000), (0, 2000, 2_000_000)))
    costs = KvCosts().observe(prefills).observe(failed(3_500_000))
    assert not costs.moving_pays(3400)
    assert costs.observe(drained()).moving_pays(3400)


def test_what_was_not_fetched_as_the_weights_are_others_is_no_failure() -> None:
    assert measured().observe(failed(60_000_000, OTHER_WEIGHTS)) == measured()


@pytest.mark.parametrize(("tokens", "seconds"), [(100, 2.0), (40_000, 40.0), (700_000, 120.0)])
def test_kv_is_waited_for_as_long_as_its_prefill_would_take_within_bounds(tokens: int, seconds: float) -> None:
    [move] = plan_moves(drained(tokens), [state("b", 1)], measured(), "always")
    assert move.wait_us == pytest.approx(seconds * 1e6, rel=1e-6)


def test_where_nobody_tells_what_prefills_take_kv_is_waited_for_twice_as_long_as_it_takes() -> None:
    costs = KvCosts()
    for tokens in (1_000_000, 4_000_000):
        costs = costs.observe(exported(tokens, 0)).observe(imported(tokens, 4 * tokens))  # 4 and 16 s
    assert costs.wait_s(2_000_000) == pytest.approx(16.0, rel=1e-6) and costs.moving_pays(2_000_000)
    assert KvCosts().wait_s(2_000_000) == 2.0


def state(name: str, position: int, running: int = 0, version: int = 3) -> CellState:
    return CellState(name, position, "1", f"http://{name}", 2, CellRole.SAMPLING, version=version, running=running)


def drained(*tokens: int) -> Drained:
    requests = tuple(Interrupted(f"e{n}", f"e{n}-x.1", size) for n, size in enumerate(tokens))
    return Drained(cell="a", incarnation="1", command_epoch=1, command_number=4, weight_version=3, requests=requests)


def test_the_longest_contexts_go_first_to_where_they_can_stay_longest_while_there_is_room() -> None:
    cells = [state("pool", -1, running=1), state("c2", 2)]
    moves = plan_moves(drained(10, 5000, 300, 70), cells, measured())
    assert moves == (
        Move("e1", "e1-x.1", "pool", True, 5_000_000),
        Move("e2", "e2-x.1", "c2", True, 2_000_000),
        Move("e3", "e3-x.1", "c2", True, 2_000_000),
    )


def test_who_waits_and_who_is_on_the_way_has_a_place_too() -> None:
    cells = [replace(state("c3", 3), waiting=1), state("c2", 2), state("c1", 1)]
    moves = plan_moves(drained(10, 5000, 300), cells, measured(), planned={"c3": 1, "c2": 1})
    assert [(move.execution, move.destination) for move in moves] == [("e1", "c2"), ("e2", "c1"), ("e0", "c1")]


def test_no_execution_goes_to_a_cell_that_lacks_the_weights_it_was_dispatched_at() -> None:
    """Its proxy would not take it there, and KV would have moved for nothing."""
    cells = [state("c3", 3, version=3), state("c2", 2, version=4)]
    moves = plan_moves(drained(5000, 10), cells, measured(), versions={"e0": 4, "e1": 3})
    assert [(move.execution, move.destination) for move in moves] == [("e0", "c2"), ("e1", "c3")]
    assert plan_moves(drained(5000), cells, measured(), versions={"e0": 5}) == ()


def test_the_requests_of_one_execution_go_together_and_take_one_place() -> None:
    requests = tuple(Interrupted("e", f"e-{n}.1", 100 - n) for n in range(3))
    both = Drained(
        cell="a", incarnation="1", command_epoch=1, command_number=4, weight_version=3,
        requests=(*requests, Interrupted("f", "f-1.1", 50)),
    )  # fmt: skip
    moves = plan_moves(both, [state("b", 2)], measured(), "never")
    assert [(move.execution, move.destination) for move in moves] == [("e", "b")] * 3 + [("f", "b")]


@pytest.mark.parametrize(("kv", "version", "expected"), [
    ("auto", 3, [True, False]), ("always", 3, [True, True]), ("never", 3, [False, False]), ("auto", 4, [False, False]),
    ("always", 4, [False, False]),
])  # fmt: skip
def test_kv_moves_where_it_pays_and_its_weights_are_those_of_the_destination(kv: str, version: int, expected: list[bool]) -> None:
    moves = plan_moves(drained(5000, 10), [state("b", 1, version=version)], measured(), kv)
    assert [move.with_kv for move in moves] == expected


@pytest.mark.parametrize(("kv", "expected"), [("auto", [True, False]), ("always", [True, True]), ("never", [False, False])])
def test_where_kv_is_kept_across_versions_it_moves_to_other_weights_as_to_the_same(kv: str, expected: list[bool]) -> None:
    moves = plan_moves(drained(5000, 10), [state("b", 1, version=4)], measured(), kv, across_versions=True)
    assert [move.with_kv for move in moves] == expected


def test_a_long_context_does_not_spoil_what_is_known_of_short_ones() -> None:
    """An attention that costs more than its square at 32k tokens must not make 256 tokens look cheap: 10 ms there, not 4."""
    fit = Fit()
    for tokens, seconds in ((128, 0.005), (256, 0.010), (512, 0.022), (8192, 1.5), (32_768, 23.6)):
        fit = fit.add(tokens, float(tokens) ** 2, seconds)
    assert fit.predict(256, 256.0**2) == pytest.approx(0.010, rel=0.15)

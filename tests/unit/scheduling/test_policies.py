"""Async and Colocate by hand, and what all policies hold in a drawn world: they are live, serial, and each keeps its own promise."""

import dataclasses
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gyre_engine.events.cells import CellRole
from gyre_engine.scheduling.cluster import Begin, Cell, Cluster, Demand, Switch
from gyre_engine.scheduling.policies import POLICIES, PolicySettings
from tests.unit.scheduling.world import World

S, T = CellRole.SAMPLING, CellRole.TRAINING
LETTER = {"s": S, "t": T, "x": CellRole.SWITCHING}
MOST_MOVES = 4000


def decide(policy: str, roles: str, facts: dict[str, object], pool: str = "", training_cells: int = 1) -> object:
    order = (Cell(f"c{i}", i, LETTER[r]) for i, r in enumerate(roles))
    standalone = (Cell(f"p{i}", -1 - i, LETTER[r]) for i, r in enumerate(pool))
    demand = dataclasses.replace(Demand(), **facts)  # type: ignore[arg-type]
    settings = PolicySettings(training_cells=training_cells)
    found = POLICIES[policy](Cluster((*standalone, *order), 8), demand, settings)
    return "begin" if isinstance(found, Begin) else (found.cell, found.to.value) if found else None


@pytest.mark.parametrize(
    ("roles", "facts", "expected"),
    [
        # Two of four train for ever, from the start, whatever is out.
        ("ssss", {"water_level": 99}, ("c0", "training")),
        ("xsss", {}, None),
        ("tsss", {}, ("c1", "training")),
        ("ttss", {}, "begin"),
        ("ttss", {"begun": True, "step_open": True, "free_micro_steps": 9}, None),
        ("ttss", {"begun": True, "batch_ready": True}, None),
        ("ttts", {"begun": True}, ("c2", "sampling")),
        ("ttss", {"over": True}, None),
        # A run without steps, an evaluation, has nobody to train.
        ("ssss", {"over": True}, None),
    ],
)
def test_async_trains_with_a_fixed_split(roles: str, facts: dict[str, object], expected: object) -> None:
    assert decide("async", roles, facts, pool="s", training_cells=2) == expected


READY = {"batch_ready": True, "burst_ready": True}


@pytest.mark.parametrize(
    ("roles", "facts", "expected"),
    [
        # All leave together once the whole burst is ready, the core last; what is out waits.
        ("sss", {"batch_ready": True, "water_level": 0}, None),
        ("sss", {**READY, "water_level": 24}, ("c1", "training")),
        ("sxs", READY, None),
        ("sts", READY, ("c2", "training")),
        ("stt", READY, ("c0", "training")),
        ("ttt", READY, "begin"),
        # Until the burst is done nobody samples.
        ("ttt", {"begun": True, "step_open": True}, None),
        ("ttt", {"begun": True, **READY}, None),
        # Then all go back, the core first, or stay for a burst that is ready.
        ("ttt", {"batch_ready": True}, ("c0", "sampling")),
        ("stt", {}, ("c1", "sampling")),
        ("sst", {}, ("c2", "sampling")),
        # An evaluation has to be sampled before anything can be published.
        ("ttt", {**READY, "blocked": True}, ("c0", "sampling")),
        ("sss", {**READY, "blocked": True}, None),
        ("ttt", {"over": True}, ("c0", "sampling")),
    ],
)
def test_colocate_switches_all_together(roles: str, facts: dict[str, object], expected: object) -> None:
    assert decide("colocate", roles, facts, pool="s") == expected


@st.composite
def worlds(draw: st.DrawFn, policy: str, retries: int = 4) -> World:
    number = st.integers
    cells = draw(number(1, 4))
    pool = draw(number(0 if policy != "async" or cells > 1 else 1, 2))
    training = draw(number(1, cells if pool else max(1, cells - 1)))
    return World(
        policy, Random(draw(number(0, 1 << 30))), cells, pool, draw(number(1, 4)), draw(number(1, 2)), draw(number(1, 3)),
        draw(number(1, 3)), draw(number(0, 3)), draw(number(1, 6)), draw(number(1, 4)), draw(number(0, retries)),
        draw(st.booleans()), PolicySettings(draw(st.sampled_from([1.0, 0.5, 0.0])), training),
    )  # fmt: skip


def run(world: World) -> None:
    """To the end of the run. Raises Dead, or AssertionError where it comes to no end."""
    for _ in range(MOST_MOVES):
        if world.over:
            return
        world.move()
    raise AssertionError(f"{world.policy} made no end in {MOST_MOVES} moves: step {world.step}")


@pytest.mark.parametrize("policy", POLICIES)
@given(data=st.data())
def test_every_policy_is_live_and_serial(policy: str, data: st.DataObject) -> None:
    """Deadlocks, decisions under way, switches that change nothing and bursts that begin twice are the world's own errors."""
    run(data.draw(worlds(policy)))


@pytest.mark.parametrize("policy", POLICIES)
@given(data=st.data(), roles=st.lists(st.sampled_from([S, T]), min_size=1, max_size=4))
def test_every_policy_is_live_from_any_roles(policy: str, data: st.DataObject, roles: list[CellRole]) -> None:
    world = data.draw(worlds(policy))
    for position, role in zip(range(world.cells), roles, strict=False):
        world.roles[position] = role
    run(world)


def decisions(world: World) -> list[tuple[Switch | Begin, Demand, Cluster]]:
    return [what for kind, what in world.log if kind == "decide"]  # type: ignore[misc]


@given(data=st.data())
def test_under_paper_those_in_training_are_a_prefix_and_leave_only_what_the_rest_can_serve(data: st.DataObject) -> None:
    world = data.draw(worlds("paper", retries=0))
    world.settings, world.evaluates = PolicySettings(), False
    run(world)
    for decision, demand, cluster in decisions(world):
        roles = [c.role for c in cluster.order]
        assert roles == sorted(roles, key=lambda role: role is S)
        if isinstance(decision, Switch) and decision.to is T:
            assert demand.out_there <= cluster.sampling_capacity - cluster.capacity_per_cell
            assert decision.cell == str(len(cluster.training))
        elif isinstance(decision, Switch) and demand.begun:
            assert next(c for c in cluster.order if c.name == decision.cell).held_over, "inside a burst the prefix grows"


@given(data=st.data())
def test_the_split_of_async_never_changes(data: st.DataObject) -> None:
    world = data.draw(worlds("async"))
    run(world)
    n = world.settings.training_cells
    assert [d.cell for d, _, _ in decisions(world) if isinstance(d, Switch)] == [str(i) for i in range(n)]


@given(data=st.data())
def test_colocate_never_trains_and_samples_at_once(data: st.DataObject) -> None:
    world = data.draw(worlds("colocate"))
    for _ in range(MOST_MOVES):
        if world.over:
            return
        world.move()
        if world.free is not None:
            assert all(role is T for position, role in world.roles.items() if position >= 0) and not world.going

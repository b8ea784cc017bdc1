"""`paper` by hand from method.md 2: w <= C_R - C_e, serial, core first, a growing prefix, and what happens after a burst."""

import dataclasses

import pytest

from gyre_engine.events.cells import CellRole
from gyre_engine.scheduling.cluster import Begin, Cell, Cluster, Decision, Demand
from gyre_engine.scheduling.policies import PolicySettings
from gyre_engine.scheduling.policies.paper import paper

LETTER = {"s": CellRole.SAMPLING, "t": CellRole.TRAINING, "h": CellRole.TRAINING, "x": CellRole.SWITCHING}


def cluster(roles: str, pool: str = "", capacity: int = 8) -> Cluster:
    """A letter a cell of the order, then of the standalone pool; h trains since before the burst began."""
    order = (Cell(f"c{i}", i, LETTER[r], r == "h") for i, r in enumerate(roles))
    standalone = (Cell(f"p{i}", -1 - i, LETTER[r]) for i, r in enumerate(pool))
    return Cluster((*standalone, *order), capacity)


def words(decision: Decision | None) -> tuple[str, str] | str | None:
    if isinstance(decision, Begin):
        return "begin"
    return (decision.cell, decision.to.value) if decision else None


BEGUN = {"begun": True}
OPEN = {"begun": True, "step_open": True, "free_micro_steps": 3}
READY = {"batch_ready": True}


def decide(roles: str, facts: dict[str, object], pool: str = "", slack: float = 1.0) -> tuple[str, str] | str | None:
    demand = dataclasses.replace(Demand(), **facts)  # type: ignore[arg-type]
    return words(paper(cluster(roles, pool), demand, PolicySettings(slack=slack)))


@pytest.mark.parametrize(
    ("roles", "facts", "expected"),
    [
        # Three cells of 8: C_R = 24, the core leaves at w <= 16, and only for a batch.
        ("sss", {**READY, "water_level": 17}, None),
        ("sss", {**READY, "water_level": 16}, ("c0", "training")),
        ("sss", {"water_level": 0}, None),
        # What the last boundary allows will be out at once: it counts.
        ("sss", {**READY, "water_level": 9, "to_dispatch": 8}, None),
        ("sss", {**READY, "water_level": 8, "to_dispatch": 8}, ("c0", "training")),
        # Serial: nothing while a cell switches.
        ("xss", READY, None),
        ("txs", {**OPEN, "water_level": 0}, None),
        # The first satellite at C_R = 16: w <= 8, and only for micro-steps that nobody holds.
        ("tss", {**OPEN, "water_level": 8}, ("c1", "training")),
        ("tss", {**OPEN, "water_level": 9}, None),
        ("tss", {**OPEN, "water_level": 8, "free_micro_steps": 0}, None),
        ("tss", {**BEGUN, **READY, "water_level": 0}, None),
        # The last sampling cell leaves when nothing is out there any more.
        ("tts", {**OPEN, "water_level": 0}, ("c2", "training")),
        ("tts", {**OPEN, "water_level": 1}, None),
        # A core that came back into an open step (it was restarted) is wanted there first.
        ("sts", {**OPEN, "water_level": 0}, ("c0", "training")),
        # The burst begins when the core is there: C_R beside it is 16.
        ("tss", {**READY, "water_level": 16}, "begin"),
        # Until the burst ends the prefix only grows, whether its next batch is there or not.
        ("tts", {**BEGUN, **READY, "water_level": 30}, None),
        ("tts", {**BEGUN, "water_level": 8}, None),
        # After a burst the core stays where the next batch is ready and 16 serve what is out and due.
        ("tts", {**READY, "water_level": 8, "to_dispatch": 8}, "begin"),
        # Satellites go back, the last one first, also while the core is at the next burst already.
        ("thh", {**OPEN, "water_level": 0}, ("c2", "sampling")),
        ("ths", {**OPEN, "water_level": 0}, ("c1", "sampling")),
        # Else all go back, the core last.
        ("tts", {**READY, "water_level": 9, "to_dispatch": 8}, ("c1", "sampling")),
        ("tss", {**READY, "water_level": 9, "to_dispatch": 8}, ("c0", "sampling")),
        ("tts", {}, ("c1", "sampling")),
        ("tss", {}, ("c0", "sampling")),
        # Inside a burst no step can open, and more is out than is served: somebody has to.
        ("ttt", {**BEGUN, "water_level": 1}, ("c2", "sampling")),
        ("tts", {**BEGUN, "water_level": 9}, ("c1", "sampling")),
        ("ttt", {**BEGUN, **READY, "blocked": True, "water_level": 1}, ("c2", "sampling")),
        ("ttt", {**OPEN, "water_level": 1}, None),
        ("ttt", {**BEGUN, **READY, "water_level": 1}, None),
        # The run is over: everybody goes back, nobody leaves.
        ("tts", {**BEGUN, "over": True}, ("c1", "sampling")),
        ("sss", {**READY, "over": True}, None),
        # One cell: it trains when all executions have ended.
        ("s", {**READY, "water_level": 1}, None),
        ("s", {**READY, "water_level": 0}, ("c0", "training")),
        ("t", {**READY, "to_dispatch": 1}, ("c0", "sampling")),
    ],
)  # fmt: skip
def test_the_rule(roles: str, facts: dict[str, object], expected: object) -> None:
    assert decide(roles, facts) == expected


@pytest.mark.parametrize(
    ("roles", "pool", "facts", "expected"),
    [
        # Two engines of 8 in the pool: they count in C_R (32), so the core leaves at w <= 24 and the last cell at w <= 16.
        ("ss", "ss", {**READY, "water_level": 24}, ("c0", "training")),
        ("ss", "ss", {**READY, "water_level": 25}, None),
        ("ts", "ss", {**OPEN, "water_level": 16}, ("c1", "training")),
        ("ts", "ss", {**OPEN, "water_level": 17}, None),
        # They never leave it.
        ("tt", "ss", {**OPEN, "water_level": 0}, None),
        # One that is away serves nobody and holds nobody up.
        ("ss", "xs", {**READY, "water_level": 16}, ("c0", "training")),
        ("ss", "xs", {**READY, "water_level": 17}, None),
        ("t", "ss", {**READY, "water_level": 8, "to_dispatch": 8}, "begin"),
        ("t", "xs", {**READY, "water_level": 8, "to_dispatch": 8}, ("c0", "sampling")),
    ],
)
def test_the_standalone_pool_counts_and_never_trains(roles: str, pool: str, facts: dict[str, object], expected: object) -> None:
    assert decide(roles, facts, pool) == expected


def test_a_slack_of_half_a_cell_lets_half_a_cell_wait_when_leaving_and_when_staying() -> None:
    """C_R 24, C_e 8: the core leaves at w <= 24 - 4, and begins with as much out."""
    assert decide("sss", {**READY, "water_level": 20}, slack=0.5) == ("c0", "training")
    assert decide("sss", {**READY, "water_level": 21}, slack=0.5) is None
    assert decide("tss", {**READY, "water_level": 20}, slack=0.5) == "begin"
    assert decide("tss", {**READY, "water_level": 21}, slack=0.5) == ("c0", "sampling")

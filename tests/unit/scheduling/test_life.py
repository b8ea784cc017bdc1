"""The life of a cell: the table is whole, nothing outside it can happen, and every wait ends."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gyre_engine.events.cells import CellRole, LifeState, LifeTrigger, Move
from gyre_engine.scheduling.life import MEANING, TABLE, IllegalTransition, LifeLimits, after, role_of

S, T = LifeState, LifeTrigger
FULL_CIRCLE = [
    (T.TOLD_TO_TRAIN, S.DRAINING), (T.DRAINED, S.EXPORTING), (T.EXPORTED, S.JOINING), (T.JOINED, S.TRAINING),
    (T.TOLD_TO_SAMPLE, S.SEALING), (T.LEFT, S.REFRESHING), (T.REFRESHED, S.SAMPLING),
]  # fmt: skip


def test_a_cell_goes_the_full_circle() -> None:
    state = S.SAMPLING
    for trigger, expected in FULL_CIRCLE:
        state = after(state, trigger)
        assert state is expected


def test_the_table_and_its_words_are_whole() -> None:
    assert set(TABLE) == set(MEANING) == set(LifeState)
    assert {trigger for exits in TABLE.values() for trigger in exits} == set(LifeTrigger)


def reached(start: LifeState, without: frozenset[LifeTrigger] = frozenset()) -> set[LifeState]:
    found, left = {start}, [start]
    while left:
        for trigger, state in TABLE[left.pop()].items():
            if trigger not in without and state not in found:
                found.add(state)
                left.append(state)
    return found


OF_THE_RUN = [state for state in LifeState if state is not S.GONE]


@pytest.mark.parametrize("state", OF_THE_RUN)
def test_every_state_leads_back_to_sampling_and_to_training(state: LifeState) -> None:
    assert {S.SAMPLING, S.TRAINING} <= reached(state)


@pytest.mark.parametrize("state", OF_THE_RUN)
def test_a_cell_can_leave_from_every_state_and_nothing_follows(state: LifeState) -> None:
    """Without another command: the way out needs no role to be taken first, but that of a member that finds itself in a step."""
    commands = frozenset({T.TOLD_TO_SAMPLE, T.TOLD_TO_TRAIN})
    assert S.GONE in reached(state, commands)
    assert TABLE[S.GONE] == {}


@pytest.mark.parametrize("state", OF_THE_RUN)
def test_a_state_that_waits_has_a_limit_and_a_way_out_at_its_end(state: LifeState) -> None:
    """What ends by command alone has none; an engine that is away is waited for by the process itself, which ends at the limit."""
    limit = LifeLimits().of(state)
    if state in (S.SAMPLING, S.JOINING, S.TRAINING):
        assert limit is None and T.TIMED_OUT not in TABLE[state]
    else:
        assert limit is not None and (T.TIMED_OUT in TABLE[state] or state in (S.STARTING, S.LOST))


@pytest.mark.parametrize(
    ("moves", "limit"),
    [
        ((), 5.0),
        ((Move("e", "r", "b", False, 60_000_000),), 5.0),
        ((Move("e", "r", "b", True),), 5.0),
        ((Move("e", "r", "b", True, 8_000_000), Move("f", "s", "b", True, 40_000_000)), 40.0),
        ((Move("e", "r", "b", True, 3_600_000_000),), 120.0),
    ],
)
def test_exporting_lasts_as_long_as_its_moves_are_worth_within_bounds(moves: tuple[Move, ...], limit: float) -> None:
    assert LifeLimits(exporting=5.0).exporting_of(moves) == limit


@pytest.mark.parametrize("state", [s for s in OF_THE_RUN if s not in (S.STARTING, S.LOST)])
def test_an_engine_may_be_lost_in_any_state(state: LifeState) -> None:
    assert after(state, T.ENGINE_LOST) is S.LOST


@given(st.lists(st.sampled_from(list(LifeTrigger)), max_size=30))
def test_what_the_table_does_not_list_cannot_happen(triggers: list[LifeTrigger]) -> None:
    state = S.STARTING
    for trigger in triggers:
        if trigger in TABLE[state]:
            state = after(state, trigger)
        else:
            with pytest.raises(IllegalTransition, match=f"a cell that is {state} cannot be {trigger}; it can be \\w"):
                after(state, trigger)


def test_no_path_from_sampling_to_training_leaves_the_drain_out() -> None:
    """A cell that has sampled never trains, nor the other way round, before it has let go of what it had."""
    without_drain = reached(S.SAMPLING, frozenset({T.DRAINED, T.FINISHED, T.ENGINE_LOST, T.TIMED_OUT}))
    assert S.TRAINING not in without_drain
    without_refresh = reached(S.TRAINING, frozenset({T.REFRESHED}))
    assert S.SAMPLING not in without_refresh


def test_a_switch_is_neither_sampling_nor_training() -> None:
    roles = {state: role_of(state) for state in LifeState}
    assert {s for s, role in roles.items() if role is CellRole.SAMPLING} == {S.SAMPLING}
    assert {s for s, role in roles.items() if role is CellRole.TRAINING} == {S.JOINING, S.TRAINING}

"""What the core keeps of what it reads: the calls that it may still train, whichever topic it reads first."""

from __future__ import annotations

from itertools import permutations

import pytest

from gyre_engine.training.ledger.backlog import Backlog
from tests.unit.replay.test_derived_again import group_of, logged

TOPICS = ("executions", "model-calls", "trajectories")
EXECUTIONS = ("g.0.0", "g.1.0")


@pytest.mark.parametrize("order", list(permutations(TOPICS)), ids="-".join)
@pytest.mark.parametrize(
    ("rewards", "calls", "kept"),
    [((1.0, 0.0), (2, 3), [2, 3]), ((1.0, 1.0), (2, 3), [0, 0]), ((1.0, 0.0), (2, 0), [2, 0])],
    ids=["both train", "no variance", "one has nothing"],
)
def test_calls_of_a_group_are_kept_where_they_train(
    order: tuple[str, ...], rewards: tuple[float, float], calls: tuple[int, int], kept: list[int]
) -> None:
    log, backlog = logged(rewards, calls), Backlog()
    for topic in order:
        for record in log.read(topic):
            backlog.see(record.event)
    assert [len(backlog.calls.of(name)) for name in EXECUTIONS] == kept
    assert [g.group for g in backlog.admitted] == ["g"], "it counts as a group of its step all the same"
    backlog.consume(["g"])
    assert not any(backlog.calls.of(name) for name in EXECUTIONS)
    assert group_of(log).trains is (rewards[0] != rewards[1])

"""Cases of training that neighbours' users reported, from model calls to the weights of the packed targets."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from growth import model_call

from gyre_engine.admission import Admission, AdmissionSettings
from gyre_engine.batching import pack
from gyre_engine.batching.assemble import assemble
from gyre_engine.events import Event, Recorded
from gyre_engine.events.calls import ExecutionClosed, ModelCall
from gyre_engine.events.executions import Dispatched, Ending, Finished, Scored
from gyre_engine.events.training import AdmittedExecution, GroupAdmitted
from gyre_engine.trees import facts
from gyre_engine.trees.tree import TrajectoryTree


def ended(index: int, reward: float, calls: list[ModelCall]) -> list[Event]:
    """An execution of a group of two as its events."""
    name = f"g.{index}.0"
    tree = TrajectoryTree(name)
    for call in calls:
        tree.add(facts.of_call(replace(call, execution=name)))
    closed = tree.close(ExecutionClosed(execution=name, owner_epoch=1, calls=len(calls), last_call=calls[-1].call))
    assert closed is not None
    return [
        Dispatched(
            execution=name, group="g", index=index, attempt=0, group_size=2, group_number=0, class_number=0, query="q", source="s",
            split="train", harness="h", weight_version=0,
        ),
        Finished(execution=name, ending=Ending.COMPLETED, work_url="", work_hash="", did_work=True, served_us=1, wall_us=1),
        closed,
        Scored(execution=name, scorer="verifier", scorer_version="1", evaluation_attempt=1, reward=reward),
    ]  # fmt: skip


def admit(*events: Event) -> GroupAdmitted:
    admission = Admission(AdmissionSettings("verifier", "1"))
    decided = [admission.observe(Recorded(f"id{n}", "run", n, None, event)) for n, event in enumerate(events)]
    (found,) = [one.event for one in decided if one is not None]
    return found


def weights(admitted: AdmittedExecution, calls: list[ModelCall], aggregate: str = "two-level") -> np.ndarray:
    """The weight of each packed token of an execution; 0 where nothing is trained."""
    (step,) = pack([assemble(admitted, calls)], 1000, aggregate=aggregate)
    found = np.zeros(step.tokens)
    np.add.at(found, step.dst, step.weight)
    return found


def test_c20_an_execution_that_branched_weighs_as_much_as_one_that_did_not() -> None:
    """C20: A has reward 1 and three trajectories (4, 6 and 2 sampled tokens), B reward 0 and one of 5: baseline 0.5."""
    several = [
        model_call(0, None, 0, [1, 2], list(range(10, 14))),
        model_call(1, None, 0, [3], list(range(20, 26))),
        model_call(2, None, 0, [4], [30, 31]),
    ]
    one = [model_call(0, None, 0, [1, 2], list(range(40, 45)))]
    group = admit(*ended(0, 1.0, several), *ended(1, 0.0, one))
    a, b = group.executions
    assert (group.mean, [len(e.trajectories) for e in (a, b)]) == (0.5, [3, 1])
    assert [e.reward - group.mean for e in (a, b)] == [0.5, -0.5]
    of_a, of_b = weights(a, several), weights(b, one)
    assert of_a.sum() == pytest.approx(a.advantage) == pytest.approx(-of_b.sum())
    assert sorted(set(of_a[of_a != 0].round(12))) == [pytest.approx(a.advantage / 12)] and np.count_nonzero(of_a) == 12


def test_c21_an_advantage_lies_on_the_sampled_tokens_and_nowhere_else() -> None:
    """C21: prompt 4, sampled 3, tool 5, sampled 2, advantage 0.7; and a second trajectory of another length."""
    calls = [
        model_call(0, None, 0, [1, 2, 3, 4], [10, 11, 12]),
        model_call(1, "c0", 7, [5, 6, 7, 8, 9], [20, 21]),
        model_call(2, None, 0, [31, 32], [40, 41, 42, 43], shape="agent"),
    ]
    group = admit(*ended(0, 1.0, calls), *ended(1, 0.0, calls[2:]))
    found = weights(replace(group.executions[0], advantage=0.7), calls, aggregate="token")
    first, second = [0.0] * 4 + [0.7] * 3 + [0.0] * 5 + [0.7] * 2, [0.0] * 2 + [0.7] * 4
    assert found.tolist() in ([*first, *second], [*second, *first])

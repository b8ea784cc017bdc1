"""A replay derives what was admitted a second time, from the calls and the scores, and tells where the log says otherwise."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from consumers.replay.derive import Sources, check_groups
from gyre_engine.admission import Admission, AdmissionSettings
from gyre_engine.events import Event, derived_id
from gyre_engine.events.calls import (
    Continuity,
    ExecutionClosed,
    Finish,
    InputSpan,
    ModelCall,
    Provenance,
    ProxyOwns,
    TreeClosed,
    WeightSpan,
)
from gyre_engine.events.executions import Discarded, DiscardReason, Dispatched, Ending, Finished, Scored
from gyre_engine.events.training import GroupAdmitted
from gyre_engine.log.memory import MemoryLog
from gyre_engine.training.ledger.merge import ReplayDiverged
from gyre_engine.trees import facts
from gyre_engine.trees.forest import Forest

SETTINGS = AdmissionSettings("verifier", "1")


def call(execution: str, number: int, epoch: int = 1) -> ModelCall:
    """A root of 3 prompt tokens and `number + 2` sampled ones."""
    size = number + 2
    return ModelCall(
        execution=execution, call=f"{execution}-{number}", number=number, owner_epoch=epoch, parent=None, prefix_len=0,
        prefix_hash=b"", new_input_ids=np.arange(3, dtype=np.int32), output_ids=np.arange(size, dtype=np.int32),
        logprobs=np.zeros(size, dtype=np.float32), weight_spans=(WeightSpan(0, number, "c0"),),
        input_spans=(InputSpan(0, Provenance.USER),), finish=Finish.STOP, continuity=Continuity.ROOT, dialect="chat",
        temperature=1.0, top_p=1.0, max_tokens=8, tools=0, messages=1, shape="s",
    )  # fmt: skip


def execution(index: int, reward: float, calls: int) -> list[Event]:
    name = f"g.{index}.0"
    last = f"{name}-{calls - 1}" if calls else None
    return [
        Dispatched(
            execution=name, group="g", index=index, attempt=0, group_size=2, group_number=0, class_number=0, query="q",
            source="s", split="train", harness="h", weight_version=0,
        ),
        ProxyOwns(execution=name, owner_epoch=1, proxy="p"),
        *[call(name, number) for number in range(calls)],
        ExecutionClosed(execution=name, owner_epoch=1, calls=calls, last_call=last, held_us=0, errors=0),
        Finished(
            execution=name, ending=Ending.COMPLETED, work_url="", work_hash="", did_work=True, served_us=1, wall_us=1
        ),
        Scored(execution=name, scorer="verifier", scorer_version="1", evaluation_attempt=1, reward=reward),
    ]  # fmt: skip


def logged(rewards: tuple[float, float], calls: tuple[int, int]) -> MemoryLog:
    """A log on which the live fold has admitted the group."""
    log, admission, forest = MemoryLog(), Admission(SETTINGS), Forest()
    for index in (0, 1):
        log.append_all(execution(index, rewards[index], calls[index]))
    records = [r for topic in ("executions", "scores") for r in log.read(topic)]
    for record in log.read("model-calls"):
        event = forest.observe(facts.of_event(record.event))
        if isinstance(event, TreeClosed):
            records.append(replace(record, id=derived_id((record.id,), "tree", 1), event=event))
    (admitted,) = [found for r in records if (found := admission.observe(r)) is not None]
    log.append_all([admitted.event])
    return log


def group_of(log: MemoryLog) -> GroupAdmitted:
    (record,) = log.read("trajectories")
    assert isinstance(record.event, GroupAdmitted)
    return record.event


@settings(deadline=None, max_examples=40)
@given(st.tuples(*[st.sampled_from([0.0, 0.25, 1.0])] * 2), st.tuples(*[st.integers(0, 6)] * 2))
def test_what_was_admitted_live_is_derived_again(rewards: tuple[float, float], calls: tuple[int, int]) -> None:
    log = logged(rewards, calls)
    assert check_groups(["g"], Sources.read(log), SETTINGS, 1) == [group_of(log)]


@pytest.mark.parametrize("field", ["reward", "advantage", "trained_tokens", "min_version"])
def test_an_execution_that_was_admitted_otherwise_is_told(field: str) -> None:
    log = logged((1.0, 0.0), (3, 2))
    sources = Sources.read(log)
    group = sources.groups["g"]
    first = group.executions[0]
    changed = replace(first, **{field: getattr(first, field) + 1})
    sources.groups["g"] = replace(group, executions=(changed, *group.executions[1:]))
    with pytest.raises(ReplayDiverged, match="step 7: group g was admitted otherwise"):
        check_groups(["g"], sources, SETTINGS, 7)


@pytest.mark.parametrize(
    ("field", "said"),
    [("group", "h"), ("group_number", 1), ("class_number", 1), ("query", "another"), ("mean", 0.25), ("reason", "no")],
)
@pytest.mark.parametrize("ends", ["counts", "left out"])
def test_a_group_that_was_admitted_otherwise_is_told(field: str, said: object, ends: str) -> None:
    """Also where none of its executions counts."""
    sources = Sources.read(logged((1.0, 0.0), (3, 2)) if ends == "counts" else left_out())
    group = sources.groups["g"]
    assert bool(group.executions) == (ends == "counts")
    assert check_groups(["g"], sources, SETTINGS, 1) == [group]
    sources.groups["g"] = replace(group, **{field: said})  # type: ignore[arg-type]
    with pytest.raises(ReplayDiverged, match="step 7: group g was admitted otherwise"):
        check_groups(["g"], sources, SETTINGS, 7)


def left_out() -> MemoryLog:
    """A group all of whose executions were discarded."""
    log, admission = MemoryLog(), Admission(SETTINGS)
    for index in (0, 1):
        dispatched, *_ = execution(index, 0.0, 0)
        log.append_all([dispatched, Discarded(execution=f"g.{index}.0", reason=DiscardReason.LOST, final=True, wall_us=1)])
    (admitted,) = [found for r in log.read("executions") if (found := admission.observe(r)) is not None]
    log.append_all([admitted.event])
    return log


def test_a_group_of_which_no_dispatch_is_on_the_log_is_told() -> None:
    sources = Sources.read(left_out())
    sources.dispatched.clear()
    with pytest.raises(ReplayDiverged, match=r"group g: the log holds no dispatch of any of g\.0\.0, g\.1\.0"):
        check_groups(["g"], sources, SETTINGS, 1)


def test_a_selection_that_leaves_a_trajectory_out_is_told() -> None:
    sources = Sources.read(logged((1.0, 0.0), (3, 2)))
    group = sources.groups["g"]
    first = group.executions[0]
    sources.groups["g"] = replace(group, executions=(replace(first, trajectories=first.trajectories[1:]), *group.executions[1:]))
    with pytest.raises(ReplayDiverged, match="group g was admitted otherwise"):
        check_groups(["g"], sources, SETTINGS, 1)


def test_what_the_log_does_not_hold_is_named() -> None:
    sources = Sources.read(logged((1.0, 0.0), (1, 1)))
    score = sources.groups["g"].executions[1].score
    del sources.scores[score]
    with pytest.raises(ReplayDiverged, match=rf"{score}.* of g\.1\.0"):
        check_groups(["g"], sources, SETTINGS, 1)
    with pytest.raises(ReplayDiverged, match="step 2: group other was trained and was never admitted"):
        check_groups(["other"], sources, SETTINGS, 2)


def test_a_deposed_proxy_s_late_call_changes_nothing() -> None:
    log = logged((1.0, 0.0), (2, 2))
    late = call("g.0.0", 9, epoch=0)
    store = MemoryLog()
    for topic in ("executions", "scores", "trajectories"):
        for record in log.read(topic):
            store.append(record.event, id=record.id, at=record.at)
    for record in log.read("model-calls"):
        store.append(record.event, id=record.id, at=record.at)
        store.append(late)
    assert check_groups(["g"], Sources.read(store), SETTINGS, 1) == [group_of(log)]


def test_the_calls_of_a_group_that_does_not_train_are_not_kept() -> None:
    equal, trains = Sources.read(logged((1.0, 1.0), (3, 2))), Sources.read(logged((1.0, 0.0), (3, 2)))
    assert [len(equal.calls.of(name)) for name in ("g.0.0", "g.1.0")] == [0, 0]
    assert [len(trains.calls.of(name)) for name in ("g.0.0", "g.1.0")] == [3, 2]
    assert equal.trees.keys() == trains.trees.keys() == {"g.0.0", "g.1.0"}


def test_what_came_after_the_end_and_cannot_be_read_changes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    log = logged((1.0, 0.0), (2, 2))
    at = log.store.put("gyre.run.model-calls", "model-calls", b"g.0.0", b"no event").result()
    assert check_groups(["g"], Sources.read(log), SETTINGS, 1) == [group_of(log)]
    assert f"replay passes over {at}: " in caplog.text

"""A replay derives micro-steps a second time and compares bytes: shares and reference log-probabilities too."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from consumers.replay.derive import Sources, check_micro_steps
from consumers.trainer.board import CORE_TOPICS
from gyre_engine.batching import PackedMicroStep
from gyre_engine.batching.step_inputs import Packing, StepInputs, packed, step_inputs
from gyre_engine.events.cells import CellRole, SchedulerElected
from gyre_engine.events.codec import from_fields, pack, to_fields, unpack
from gyre_engine.events.training import MicroStep, StepCommitted, StepOpened
from gyre_engine.training.ledger.history import CommittedStep
from gyre_engine.training.ledger.merge import ReplayDiverged
from tests.unit.replay.test_derived_again import group_of, logged
from tests.unit.training.test_trainers_protocol import Bench, begin

RULES = Packing(max_tokens=6, context=100, config_hash="h")


class Table:
    """A reference policy: the log-probability of token k is -k / scale."""

    def __init__(self, scale: float = 8.0) -> None:
        self.scale = scale

    def score(self, steps: Sequence[PackedMicroStep]) -> list[NDArray[np.float32]]:
        return [(-step.ids[step.dst] / self.scale).astype(np.float32) for step in steps]


@pytest.fixture
def sources() -> Sources:
    return Sources.read(logged((1.0, 0.0), (2, 1)))


def inputs_of(sources: Sources, reference: Table | None = None, **rules: Any) -> StepInputs:
    return step_inputs(3, list(sources.groups.values()), sources.calls, replace(RULES, **rules), reference)


def check(
    sources: Sources, inputs: StepInputs, on_log: Callable[[MicroStep], MicroStep] = lambda e: e, reference: Table | None = None
) -> int:
    opened = StepOpened(
        core_epoch=1, step=3, attempt=1, weights_hash="", groups=("g",), scores=(), executions=2, divisor=inputs.divisor,
        micro_steps=tuple(m.micro_step for m in inputs.micro_steps), staleness_max=0, staleness_mean=0.0,
    )  # fmt: skip
    committed = StepCommitted(
        core_epoch=1, step=3, attempt=1, merge_order=(), weights_hash="", executions=2, grad_norm=0.0, loss=0.0, reward_mean=0.0
    )
    found: Mapping[str, MicroStep] = {e.micro_step: e for e in map(on_log, inputs.micro_steps)}
    step = CommittedStep(opened, committed, ())
    return check_micro_steps(step, list(sources.groups.values()), sources.calls, found, RULES, reference)


def test_a_micro_step_carries_the_reference_s_log_probabilities_and_is_derived_again(sources: Sources) -> None:
    inputs = inputs_of(sources, reference=Table())
    assert len(inputs.micro_steps) > 1
    for event in inputs.micro_steps:
        read = from_fields(MicroStep, unpack(pack(to_fields(event))))
        assert packed(read).reference.tolist() == [-k / 8 for k in read.ids[read.dst].tolist()]
        assert packed(read).share.tolist() == pytest.approx(packed(read).weight / np.sign(packed(read).weight))
    assert check(sources, inputs, reference=Table()) == len(inputs.micro_steps)


@pytest.mark.parametrize("reference", [None, Table(9.0)], ids=["none", "another"])
def test_another_reference_is_told(sources: Sources, reference: Table | None) -> None:
    with pytest.raises(ReplayDiverged, match="step 3: micro-step 0 on the log is not what its model calls give"):
        check(sources, inputs_of(sources, reference=Table()), reference=reference)


def test_nothing_is_scored_where_no_reference_is_looked_at(sources: Sources) -> None:
    inputs = inputs_of(sources)
    assert [len(m.reference) for m in inputs.micro_steps] == [0] * len(inputs.micro_steps)
    assert check(sources, inputs) == len(inputs.micro_steps)


@pytest.mark.parametrize("change", [lambda share: np.empty(0), lambda share: np.nextafter(share, 9)], ids=["none", "another bit"])
def test_a_micro_step_whose_name_stands_over_other_bytes_is_told(sources: Sources, change: Callable[[Any], Any]) -> None:
    with pytest.raises(ReplayDiverged, match="micro-step 0"):
        check(sources, inputs_of(sources), lambda e: replace(e, share=change(e.share)))


def test_a_micro_step_that_is_not_on_the_log_is_named(sources: Sources) -> None:
    inputs = inputs_of(sources)
    with pytest.raises(ReplayDiverged, match=f"step 3: micro-step {inputs.micro_steps[1].micro_step} is not on the log"):
        check(sources, inputs, lambda e: replace(e, micro_step="other") if e.index == 1 else e)


def test_micro_steps_of_other_content_have_other_names(sources: Sources) -> None:
    """Same groups, step, index and config: who knows micro-steps by name alone must not take one for the other."""
    given: list[dict[str, Any]] = [{}, {}, {"reference": Table()}, {"reference": Table(9.0)}, {"aggregate": "token"}]
    plain, again, *others = [[m.micro_step for m in inputs_of(sources, **one).micro_steps] for one in given]
    assert plain == again
    names = [name for one in (plain, *others) for name in one]
    assert len(set(names)) == len(names)


def test_a_constant_divides_each_execution_by_the_same_number_of_tokens(sources: Sources) -> None:
    inputs = inputs_of(sources, aggregate="constant", constant=1000)
    assert inputs.divisor == 2 * 1000
    assert {float(s) for m in inputs.micro_steps for s in m.share} == {1.0}


def test_the_core_writes_what_the_reference_gives(tmp_path: object) -> None:
    bench = Bench(tmp_path)
    bench.core._reference = Table()
    bench.role("c0", CellRole.TRAINING)
    bench.log.append_all([SchedulerElected(epoch=2, holder="s"), begin(0, epoch=2)])
    source = logged((1.0, 0.0), (1, 1))
    for topic in CORE_TOPICS:
        bench.log.append_all([record.event for record in source.read(topic)])
    bench.until(lambda: bool(bench.events(StepOpened)), bench.move_core)
    written = [r.event for r in bench.log.read("micro-steps")]
    assert written and all(isinstance(event, MicroStep) for event in written)
    for event in written:
        assert isinstance(event, MicroStep)
        assert event.reference.tolist() == [-k / 8 for k in event.ids[event.dst].tolist()]
    assert group_of(source).trains
    bench.close()

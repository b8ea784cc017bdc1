"""A replay gives micro-steps the routed experts of their calls again, byte for byte."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from consumers.replay.derive import Sources
from gyre_engine.batching.step_inputs import packed
from gyre_engine.events.codec import from_fields, pack, to_fields, unpack
from gyre_engine.events.training import MicroStep
from gyre_engine.experts import recorded_tokens
from gyre_engine.training.ledger.merge import ReplayDiverged
from gyre_engine.trees.owned import OwnedCalls
from tests.unit.replay.test_derived_again import logged
from tests.unit.replay.test_micro_steps_again import check, inputs_of

EXECUTIONS = ("g.0.0", "g.1.0")
WIDTH = 4


def recorded(sources: Sources, salt: int = 0) -> Sources:
    """The same sources, whose calls have records that differ from call to call."""
    owned = OwnedCalls()
    for number, call in enumerate(call for execution in EXECUTIONS for call in sources.calls.of(execution)):
        tokens = recorded_tokens(call.prefix_len, call.prompt_tokens + len(call.output_ids))
        rows = (np.arange(tokens * WIDTH) + 40 * number + salt).astype(np.uint8)
        owned.see(replace(call, routed_experts=rows))
    return replace(sources, calls=owned)


@pytest.fixture
def plain() -> Sources:
    return Sources.read(logged((1.0, 0.0), (2, 1)))


def test_what_calls_recorded_is_derived_again(plain: Sources) -> None:
    sources = recorded(plain)
    inputs = inputs_of(sources)
    assert check(sources, inputs) == len(inputs.micro_steps) > 1
    for event in inputs.micro_steps:
        read = packed(from_fields(MicroStep, unpack(pack(to_fields(event)))))
        assert read.experts.shape == (len(event.ids), WIDTH)
        assert read.experts.reshape(-1).tolist() == event.routed_experts.tolist()


def test_another_record_or_none_is_told(plain: Sources) -> None:
    inputs = inputs_of(recorded(plain))
    for other in (plain, recorded(plain, salt=1)):
        with pytest.raises(ReplayDiverged, match="step 3: micro-step 0 on the log is not what its model calls give"):
            check(other, inputs)


def test_a_micro_step_without_the_field_is_one_that_records_nothing(plain: Sources) -> None:
    inputs = inputs_of(plain)
    assert all(len(m.routed_experts) == 0 for m in inputs.micro_steps)

    def old(event: MicroStep) -> MicroStep:
        fields = to_fields(event)
        del fields["routed_experts"]
        return from_fields(MicroStep, unpack(pack(fields)))

    assert check(plain, inputs, old) == len(inputs.micro_steps)

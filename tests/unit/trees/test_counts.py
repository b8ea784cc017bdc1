"""C23's counts: however an execution's work is cut into micro-steps, its trained tokens and its weight stay what was admitted."""

from __future__ import annotations

import numpy as np
import pytest
from growth import EXECUTION, model_call

from gyre_engine.batching import pack
from gyre_engine.batching.assemble import assemble
from gyre_engine.batching.work import ExecutionWork
from gyre_engine.events.calls import ModelCall, Role, TreeNode
from gyre_engine.events.training import AdmittedExecution
from gyre_engine.trees.select import SelectionSettings, select

COUNTS = (3, 50, 7, 200)


def execution(tokens: int, name: str) -> ExecutionWork:
    """Two leaves below a prompt of 5 tokens: the first samples one token less than half, the second the rest."""
    first = max(1, tokens // 2 - 1)
    calls = [
        model_call(0, None, 0, list(range(5)), list(range(10, 10 + first))),
        model_call(1, "c0", 5, [7], list(range(500, 500 + tokens - first))),
    ]
    nodes = [_node(call) for call in calls]
    chosen = select(EXECUTION, nodes, SelectionSettings())
    admitted = AdmittedExecution(
        name, 0, "s", 1.0, 0.7, chosen.trained_tokens, chosen.trajectories, chosen.left_out, chosen.min_version
    )
    return assemble(admitted, calls)


def _node(call: ModelCall) -> TreeNode:
    new, out = len(call.new_input_ids), len(call.output_ids)
    return TreeNode(call.call, call.parent, call.prefix_len, new, out, True, Role.MAIN, 0)


@pytest.mark.parametrize("room", [40, 130, 1000])
def test_c23_each_execution_keeps_its_count_and_its_weight_however_it_is_cut(room: int) -> None:
    """C23: 3, 50, 7 and 200 trained tokens, cut in three ways."""
    works = [execution(count, f"g.{index}.0") for index, count in enumerate(COUNTS)]
    assert [work.trained_tokens for work in works] == list(COUNTS)
    targets = dict.fromkeys((work.execution for work in works), 0)
    weight = dict.fromkeys(targets, 0.0)
    for step in pack(works, room):
        for name, first, count in step.executions:
            targets[name] += count
            weight[name] += float(np.sum(step.weight[first : first + count]))
    assert list(targets.values()) == list(COUNTS)
    assert list(weight.values()) == pytest.approx([0.7] * 4, rel=1e-12)

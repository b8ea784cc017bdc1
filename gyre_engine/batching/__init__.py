"""Batching: what admission selected becomes packed micro-steps, the unit of training work that a cell claims.

`assemble` puts the tokens back into selected trajectories, with the experts that `routed` finds for them, `work` is what it gives,
`cutting` makes pieces that fit, where `grouping` says which leaves go together, `packing` lays them side by side as a `microstep`,
`step_inputs` does all of it for the groups of a step.

A pack holds trees of many executions side by side, depth-first. Key j is visible to query i iff `j <= i < end[j]`,
so one pass trains every selected path of a tree at the cost of its unique tokens. numpy only.
"""

from gyre_engine.batching.microstep import PackedMicroStep
from gyre_engine.batching.packing import pack
from gyre_engine.batching.work import ExecutionWork, Segment

__all__ = ["ExecutionWork", "PackedMicroStep", "Segment", "pack"]

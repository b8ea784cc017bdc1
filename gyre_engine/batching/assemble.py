"""Selected trajectories with their tokens: what batching packs. Live and in replay the same.

From the deltas of an execution's calls and the leaves that admission chose; the counts must come out as admitted.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from gyre_engine.batching.routed import routed_experts
from gyre_engine.batching.work import ExecutionWork, Segment
from gyre_engine.dead_end import DeadEnd
from gyre_engine.events.calls import ModelCall
from gyre_engine.events.training import AdmittedExecution
from gyre_engine.experts import BadRouting, Rows
from gyre_engine.trees.facts import of_call
from gyre_engine.trees.segments import Run, Segments, places, segments_of
from gyre_engine.trees.select import TrainedRange, ranges_of

Ints = NDArray[np.int32]
Floats = NDArray[np.float32]


class AssemblyError(ValueError, DeadEnd):
    """The calls on the log do not give what was admitted; the text names the execution, the leaf and both counts."""


def assemble(admitted: AdmittedExecution, calls: Sequence[ModelCall]) -> ExecutionWork:
    """The work of one admitted execution from its model calls in the order of the log, ended by its closing.

    Records of stale owners and of calls that stand twice must be gone (log-rules, 9; trees.owned). Only the paths of the selected
    leaves are laid out. Raises AssemblyError where a leaf is missing or a count differs.
    """
    nodes = [of_call(call) for call in calls]
    leaves = _leaves(admitted, places(nodes))
    tree = segments_of(nodes, leaves, set(leaves))
    ranges = ranges_of(nodes, tree, leaves)
    _check(admitted, ranges)
    ids, starts = _tokens(tree, calls)
    trained, sequence, logprobs, versions = _trained(calls, places(nodes), starts, ranges)
    return ExecutionWork(
        execution=admitted.execution,
        segments=tuple(Segment(part, segment.parent) for part, segment in zip(ids, tree.segments, strict=True)),
        trained=trained,
        logprobs=logprobs,
        versions=versions,
        advantage=admitted.advantage,
        trained_tokens=admitted.trained_tokens,
        sequences=sequence,
        experts=_experts(admitted, tree, calls),
    )


def _experts(admitted: AdmittedExecution, tree: Segments, calls: Sequence[ModelCall]) -> Rows:
    try:
        return routed_experts(tree, calls)
    except BadRouting as error:
        raise AssemblyError(f"execution {admitted.execution}: {error}") from error


def _leaves(admitted: AdmittedExecution, place: dict[str, int]) -> list[int]:
    missing = [t.leaf for t in admitted.trajectories if t.leaf not in place]
    if missing:
        raise AssemblyError(f"execution {admitted.execution}: the log holds no call {missing[0]}, an admitted leaf")
    return [place[t.leaf] for t in admitted.trajectories]


def _check(admitted: AdmittedExecution, ranges: Sequence[Sequence[TrainedRange]]) -> None:
    for trajectory, path in zip(admitted.trajectories, ranges, strict=True):
        count = sum(item.stop - item.start for item in path)
        if count != trajectory.trained_tokens:
            raise AssemblyError(
                f"execution {admitted.execution}: leaf {trajectory.leaf} was admitted with {trajectory.trained_tokens} "
                f"trained tokens, its calls hold {count}"
            )
    total = sum(trajectory.trained_tokens for trajectory in admitted.trajectories)
    if total != admitted.trained_tokens:
        raise AssemblyError(
            f"execution {admitted.execution}: admitted with {admitted.trained_tokens} trained tokens, "
            f"its trajectories have {total}"
        )


Starts = dict[int, list[tuple[int, int, int]]]
"""node -> (first path position, end, place of the first in the concatenation of all segments), ascending."""


def _tokens(tree: Segments, calls: Sequence[ModelCall]) -> tuple[list[Ints], Starts]:
    """Ids of each segment, and where the parts of each node came to stand."""
    ids: list[Ints] = []
    starts: Starts = {}
    row = 0
    for segment in tree.segments:
        parts = []
        for run in segment.runs:
            parts.append(_slice(calls[run.node], run))
            starts.setdefault(run.node, []).append((run.start, run.stop, row))
            row += run.stop - run.start
        ids.append(np.concatenate(parts).astype(np.int32, copy=False))
    return ids, starts


def _slice(call: ModelCall, run: Run) -> Ints:
    delta = np.concatenate([call.new_input_ids, call.output_ids])
    return delta[run.start - call.prefix_len : run.stop - call.prefix_len]


def _trained(
    calls: Sequence[ModelCall], place: dict[str, int], starts: Starts, ranges: Sequence[Sequence[TrainedRange]]
) -> tuple[Ints, Ints, Floats, Ints]:
    """Rows of the trained tokens, ascending, with their trajectory, log-probability and weight version."""
    rows: list[Ints] = [np.empty(0, np.int32)]
    sequence: list[Ints] = [np.empty(0, np.int32)]
    logprobs: list[Floats] = [np.empty(0, np.float32)]
    versions: list[Ints] = [np.empty(0, np.int32)]
    for number, path in enumerate(ranges):
        for item in path:
            index = place[item.node]
            call = calls[index]
            rows.append(_rows(call, starts[index], item))
            sequence.append(np.full(item.stop - item.start, number, np.int32))
            logprobs.append(call.logprobs[item.start : item.stop])
            versions.append(_versions(call)[item.start : item.stop])
    joined = np.concatenate(rows)
    order = np.argsort(joined, kind="stable")
    return (
        joined[order],
        np.concatenate(sequence)[order],
        np.concatenate(logprobs)[order],
        np.concatenate(versions)[order],
    )


def _rows(call: ModelCall, parts: Sequence[tuple[int, int, int]], item: TrainedRange) -> Ints:
    first = call.prompt_tokens + item.start
    start, _, row = next(part for part in parts if part[0] <= first < part[1])
    return (row + first - start + np.arange(item.stop - item.start)).astype(np.int32)


def _versions(call: ModelCall) -> Ints:
    """The weight version of each output token."""
    bounds = [span.start for span in call.weight_spans] + [len(call.output_ids)]
    counts = np.array(bounds[1:], dtype=np.int64) - np.array(bounds[:-1], dtype=np.int64)
    if not call.weight_spans or bounds[0] != 0 or np.any(counts < 0):
        raise AssemblyError(f"call {call.call}: weight spans start at {bounds[:-1]}, not at 0 and ascending within its output")
    return np.repeat(np.array([span.version for span in call.weight_spans], dtype=np.int32), counts)

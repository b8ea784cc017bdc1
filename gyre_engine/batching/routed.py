"""Routed experts of a tree: each token has those of the first call that computed it, as far as calls recorded them.

A call's record begins at the last token of its shared prefix, which nobody computed when it was sampled: the first call that goes on
from there tells it. Only calls on the selected paths are looked at: they are what admission fixed, while others may not be read yet.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from gyre_engine.events.calls import ModelCall
from gyre_engine.experts import NO_ROWS, UNKNOWN, BadRouting, Rows, recorded_from, recorded_tokens, table, unknown
from gyre_engine.trees.segments import Run, Segments


def routed_experts(tree: Segments, calls: Sequence[ModelCall]) -> Rows:
    """The record of all tokens of the segments, one segment after the other; NO_ROWS where none of their calls has one.

    Raises BadRouting.
    """
    runs = [run for segment in tree.segments for run in segment.runs]
    records = {node: record_of(calls[node]) for node in sorted({run.node for run in runs})}
    widths = {rows.shape[1] for rows in records.values() if rows.size}
    if not widths:
        return NO_ROWS
    if len(widths) > 1:
        raise BadRouting(f"its calls have records of {sorted(widths)} bytes a token: they were sampled by different models")
    heirs = _heirs(calls, records)
    (width,) = widths
    return np.concatenate([_of_run(calls[run.node], records[run.node], heirs, run, width) for run in runs])


def record_of(call: ModelCall) -> Rows:
    """A call's own record. Raises BadRouting where it does not divide among the tokens that it is of."""
    return table(call.routed_experts, recorded_tokens(call.prefix_len, call.prompt_tokens + len(call.output_ids)))


def _heirs(calls: Sequence[ModelCall], records: Mapping[int, Rows]) -> dict[tuple[str | None, int], Rows]:
    """(call, path position) -> the row of the token before it, by the first call that goes on from there and knows it."""
    found: dict[tuple[str | None, int], Rows] = {}
    for node, rows in records.items():
        call = calls[node]
        if call.prefix_len and rows.size and np.any(rows[0] != UNKNOWN):
            found.setdefault((call.parent, call.prefix_len), rows[:1])
    return found


def _of_run(call: ModelCall, rows: Rows, heirs: dict[tuple[str | None, int], Rows], run: Run, width: int) -> Rows:
    first, end = recorded_from(call.prefix_len), call.prompt_tokens + len(call.output_ids)
    if not rows.size:
        rows = unknown(recorded_tokens(call.prefix_len, end), width)
    last = heirs.get((call.call, end), unknown(1, width))
    return np.concatenate([rows, last])[run.start - first : run.stop - first]

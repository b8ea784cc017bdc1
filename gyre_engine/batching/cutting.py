"""One execution becomes pieces that fit a micro-step.

An execution that fits stays whole. A larger one is cut into groups of root-to-leaf paths (`grouping`); each group repeats its prefix
as context, and every trained token is a target in exactly one piece: the one that holds the end of its trajectory.
A piece is a micro-step of that execution alone; `packing` lays several side by side.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gyre_engine.batching.grouping import groups_of_leaves
from gyre_engine.batching.microstep import PackedMicroStep
from gyre_engine.batching.work import ExecutionWork, InvalidWork
from gyre_engine.experts import NO_ROWS, Rows
from gyre_engine.losses.aggregates import target_shares, token_weights

Positions = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class _Shape:
    """The tree of one execution: per segment its first token, kept length (cut after the last trained token), depth."""

    starts: Positions
    kept: Positions
    depths: Positions
    owner: Positions  # segment of each trained token
    home: Positions  # segment that ends the trajectory of each trained token
    sequence: NDArray[np.int32]


def cut(work: ExecutionWork, max_tokens: int, aggregate: str, context: int | None, trees: bool = True) -> list[PackedMicroStep]:
    """The pieces of `work`, in depth-first order of their first leaf; without `trees` one a root-to-leaf path.

    Raises InvalidWork: a path beyond the context.
    """
    if len(work.trained) == 0:
        return []
    shape = _shape(work)
    weight = token_weights(aggregate, work.advantage, work.trained_tokens, shape.sequence)
    share = target_shares(aggregate, work.trained_tokens, shape.sequence)
    pieces: list[PackedMicroStep] = []
    placed = np.zeros(len(work.trained), dtype=bool)
    for members in _members(work, shape, max_tokens if trees else 0, context):
        targets = np.flatnonzero(np.isin(shape.home, members) & ~placed)
        placed[targets] = True
        pieces.append(_piece(work, shape, members, targets, weight, share))
    return pieces


def _shape(work: ExecutionWork) -> _Shape:
    lengths = np.array([len(segment.ids) for segment in work.segments], dtype=np.int64)
    starts = np.cumsum(lengths) - lengths
    owner = np.searchsorted(starts, work.trained, side="right") - 1
    kept = _kept(work, lengths, starts, owner)
    depths = np.zeros(len(lengths), dtype=np.int64)
    for index, segment in enumerate(work.segments):
        if segment.parent >= 0:
            depths[index] = depths[segment.parent] + lengths[segment.parent]
    sequence = _numbered(work.sequences)
    return _Shape(starts, kept, depths, owner, _homes(work, owner, sequence), sequence)


def _kept(work: ExecutionWork, lengths: Positions, starts: Positions, owner: Positions) -> Positions:
    """Nothing after the last trained token of a path is computed: no target depends on it."""
    kept = np.zeros_like(lengths)
    np.maximum.at(kept, owner, work.trained - starts[owner] + 1)
    for index in range(len(lengths) - 1, -1, -1):
        parent = work.segments[index].parent
        if kept[index] and parent >= 0:
            kept[parent] = lengths[parent]
    return kept


def _numbered(sequences: NDArray[np.int32]) -> NDArray[np.int32]:
    """The trajectories of the trained tokens, numbered from 0 in order of first appearance."""
    _, first, inverse = np.unique(sequences, return_index=True, return_inverse=True)
    rank = np.empty(len(first), dtype=np.int32)
    rank[np.argsort(first)] = np.arange(len(first), dtype=np.int32)
    return rank[inverse]


def _homes(work: ExecutionWork, owner: Positions, sequence: NDArray[np.int32]) -> Positions:
    """The last segment of each token's trajectory; whoever holds it holds the whole path."""
    last = np.zeros(int(sequence.max()) + 1, dtype=np.int64)
    np.maximum.at(last, sequence, owner)
    paths = {int(segment): set(_path(work, int(segment))) for segment in last}
    for segment, number in zip(owner.tolist(), sequence.tolist(), strict=True):
        if segment not in paths[int(last[number])]:
            raise InvalidWork(f"execution {work.execution}: the tokens of one selected trajectory lie on two paths")
    return last[sequence]


def _path(work: ExecutionWork, segment: int) -> Iterator[int]:
    while segment >= 0:
        yield segment
        segment = work.segments[segment].parent


def _members(work: ExecutionWork, shape: _Shape, max_tokens: int, context: int | None) -> Iterator[list[int]]:
    """Segments of each piece, ascending. Where nothing fits, each path is a piece."""
    leaves = _leaves(work, shape)
    for leaf in leaves:
        _check_context(work, int(shape.depths[leaf] + shape.kept[leaf]), context)
    parents = [segment.parent for segment in work.segments]
    for group in groups_of_leaves(parents, shape.kept.tolist(), leaves, max_tokens):
        yield sorted({index for leaf in group for index in _path(work, leaf)})


def _leaves(work: ExecutionWork, shape: _Shape) -> list[int]:
    inner = {segment.parent for index, segment in enumerate(work.segments) if shape.kept[index]}
    return [index for index in range(len(work.segments)) if shape.kept[index] and index not in inner]


def _check_context(work: ExecutionWork, length: int, context: int | None) -> None:
    if context is not None and length > context:
        raise InvalidWork(
            f"execution {work.execution}: a path of {length} tokens is longer than the model context of {context}; "
            "it cannot have been sampled by this model"
        )


def _piece(
    work: ExecutionWork,
    shape: _Shape,
    members: list[int],
    targets: Positions,
    weight: NDArray[np.float64],
    share: NDArray[np.float64],
) -> PackedMicroStep:
    kept = shape.kept[members]
    offsets = np.cumsum(kept) - kept
    place = dict(zip(members, offsets.tolist(), strict=True))
    sequence = np.unique(shape.sequence[targets], return_inverse=True)[1]
    src, dst = _rows(work, shape, place, targets)
    return PackedMicroStep(
        ids=np.concatenate([work.segments[i].ids[: shape.kept[i]] for i in members]).astype(np.int32, copy=False),
        position=np.concatenate([shape.depths[i] + np.arange(shape.kept[i]) for i in members]).astype(np.int32),
        end=np.repeat(_ends(work, members, offsets + kept), kept).astype(np.int32),
        src=src,
        dst=dst,
        logprobs=work.logprobs[targets].astype(np.float32, copy=False),
        versions=work.versions[targets].astype(np.int32, copy=False),
        weight=weight[targets],
        sequence=sequence.astype(np.int32),
        executions=((work.execution, 0, len(targets)),),
        share=share[targets],
        experts=_experts(work, shape, members),
    )


def _experts(work: ExecutionWork, shape: _Shape, members: list[int]) -> Rows:
    if not work.experts.size:
        return NO_ROWS
    return np.concatenate([work.experts[shape.starts[i] : shape.starts[i] + shape.kept[i]] for i in members])


def _ends(work: ExecutionWork, members: list[int], ends: Positions) -> Positions:
    """The end of each member's subtree, from the ends of the members themselves."""
    slots = {index: slot for slot, index in enumerate(members)}
    for slot in range(len(members) - 1, -1, -1):
        parent = work.segments[members[slot]].parent
        if parent >= 0:
            ends[slots[parent]] = max(ends[slots[parent]], ends[slot])
    return ends


def _rows(
    work: ExecutionWork, shape: _Shape, place: dict[int, int], targets: Positions
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Packed rows: dst is the trained token, src the token before it on its path."""
    owners = shape.owner[targets]
    inside = work.trained[targets] - shape.starts[owners]
    dst = np.array([place[int(owner)] for owner in owners], dtype=np.int64) + inside
    src = dst - 1
    for index in np.flatnonzero(inside == 0):
        parent = work.segments[int(owners[index])].parent
        if parent < 0:
            raise InvalidWork(f"execution {work.execution}: the first token of a root has no context and cannot be trained")
        src[index] = place[parent] + int(shape.kept[parent]) - 1
    return src.astype(np.int32), dst.astype(np.int32)

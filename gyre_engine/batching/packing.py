"""Executions become micro-steps: pieces are laid side by side until a micro-step is full.

Deterministic: the same works in the same order give the same bytes.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from gyre_engine.batching.cutting import cut
from gyre_engine.batching.microstep import PackedMicroStep
from gyre_engine.batching.work import ExecutionWork
from gyre_engine.experts import side_by_side
from gyre_engine.losses.aggregates import TWO_LEVEL


def pack(
    works: Sequence[ExecutionWork], max_tokens: int, *, aggregate: str = TWO_LEVEL, context: int | None = None, trees: bool = True
) -> list[PackedMicroStep]:
    """Micro-steps of at most `max_tokens` packed tokens, each trained token of `works` in exactly one of them.

    A single path longer than `max_tokens` makes a micro-step of its own. Without trained tokens: nothing.
    aggregate: how a target shares its execution's advantage (`losses.aggregates`).
    context:   the model's context in tokens; a longer path raises InvalidWork. None: not checked.
    trees:     False: every root-to-leaf path by itself, its prefix again: for layers without masks (`training.model.maskable`).
    """
    if max_tokens < 1:
        raise ValueError(f"max_tokens is {max_tokens}; a micro-step needs room for at least one token")
    pieces = [piece for work in works for piece in cut(work, max_tokens, aggregate, context, trees)]
    return [_join(bin_) for bin_ in _first_fit(pieces, max_tokens)]


def _first_fit(pieces: Sequence[PackedMicroStep], max_tokens: int) -> list[list[PackedMicroStep]]:
    bins: list[list[PackedMicroStep]] = []
    room: list[int] = []
    for piece in pieces:
        size = piece.tokens
        slot = next((index for index, free in enumerate(room) if free >= size), None)
        if slot is None:
            bins.append([])
            room.append(max_tokens)
            slot = len(bins) - 1
        bins[slot].append(piece)
        room[slot] -= size
    return bins


def _join(pieces: Sequence[PackedMicroStep]) -> PackedMicroStep:
    rows = _starts([piece.tokens for piece in pieces])
    targets = _starts([piece.targets for piece in pieces])
    sequences = _starts([int(piece.sequence.max()) + 1 for piece in pieces])
    return PackedMicroStep(
        ids=np.concatenate([piece.ids for piece in pieces]),
        position=np.concatenate([piece.position for piece in pieces]),
        end=_shifted([piece.end for piece in pieces], rows),
        src=_shifted([piece.src for piece in pieces], rows),
        dst=_shifted([piece.dst for piece in pieces], rows),
        logprobs=np.concatenate([piece.logprobs for piece in pieces]),
        versions=np.concatenate([piece.versions for piece in pieces]),
        weight=np.concatenate([piece.weight for piece in pieces]),
        sequence=_shifted([piece.sequence for piece in pieces], sequences),
        executions=tuple(
            (name, start + first, count)
            for piece, start in zip(pieces, targets, strict=True)
            for name, first, count in piece.executions
        ),
        share=np.concatenate([piece.share for piece in pieces]),
        experts=side_by_side([(piece.experts, piece.tokens) for piece in pieces]),
    )


def _starts(sizes: Sequence[int]) -> list[int]:
    return [sum(sizes[:index]) for index in range(len(sizes))]


def _shifted(arrays: Sequence[NDArray[np.int32]], offsets: Sequence[int]) -> NDArray[np.int32]:
    return np.concatenate([array + np.int32(offset) for array, offset in zip(arrays, offsets, strict=True)])

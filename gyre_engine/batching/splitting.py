"""One micro-step as several: whole trees go to the parts, so that every target sees what it saw, and each counts once.

Deterministic: the same micro-step gives the same parts. numpy only.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gyre_engine.batching.microstep import PackedMicroStep


def split(step: PackedMicroStep, parts: int) -> list[PackedMicroStep]:
    """At most `parts` micro-steps of about equal tokens; fewer where there are fewer trees. For 1 the micro-step itself."""
    starts = _trees(step.end)
    if parts == 1 or len(starts) < 2:
        return [step]
    sizes = np.diff([*starts, step.tokens])
    owner = np.repeat(_owners(sizes, parts), sizes)
    return [_part(step, owner == part) for part in range(min(parts, len(starts)))]


def _trees(end: NDArray[np.int32]) -> list[int]:
    """First row of every tree: a root's subtree ends where the next root stands."""
    starts: list[int] = []
    row = 0
    while row < len(end):
        starts.append(row)
        row = int(end[row])
    return starts


def _owners(sizes: NDArray[np.int64], parts: int) -> NDArray[np.int64]:
    """The part of each tree: the largest first, to the part that has the least."""
    owners, loads = np.zeros(len(sizes), dtype=np.int64), [0] * parts
    for tree in np.argsort(-sizes, kind="stable"):
        owners[tree] = loads.index(min(loads))
        loads[owners[tree]] += int(sizes[tree])
    return owners


def _part(step: PackedMicroStep, rows: NDArray[np.bool_]) -> PackedMicroStep:
    """The rows of some whole trees, and the targets among them."""
    place = (np.cumsum(rows) - 1).astype(np.int32)
    kept = rows[step.src]
    _, sequence = np.unique(step.sequence[kept], return_inverse=True)
    return PackedMicroStep(
        ids=step.ids[rows],
        position=step.position[rows],
        end=place[step.end[rows] - 1] + np.int32(1),
        src=place[step.src[kept]],
        dst=place[step.dst[kept]],
        logprobs=step.logprobs[kept],
        versions=step.versions[kept],
        weight=step.weight[kept],
        sequence=sequence.astype(np.int32),
        executions=_executions(step, kept),
    )


def _executions(step: PackedMicroStep, kept: NDArray[np.bool_]) -> tuple[tuple[str, int, int], ...]:
    before = np.concatenate([[0], np.cumsum(kept)])
    found = ((name, int(before[first]), int(before[first + count] - before[first])) for name, first, count in step.executions)
    return tuple(entry for entry in found if entry[2])

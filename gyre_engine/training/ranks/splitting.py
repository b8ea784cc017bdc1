"""One micro-step as several: whole trees go to the parts, so that every target sees what it saw, and each counts once.

Deterministic: the same micro-step gives the same parts. numpy only.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gyre_engine.batching.microstep import PackedMicroStep


def split(step: PackedMicroStep, parts: int) -> list[PackedMicroStep]:
    """At most `parts` micro-steps of about equal tokens; fewer where there are fewer trees. For 1 the micro-step itself."""
    owners = _owner_of_rows(step, parts)
    if owners is None:
        return [step]
    return [_part(step, owners == part) for part in range(int(owners.max()) + 1)]


def joined(step: PackedMicroStep, parts: int, found: Sequence[NDArray[np.float32]]) -> NDArray[np.float32]:
    """What was found of the targets of each of `split(step, parts)`, in the order of the micro-step's targets."""
    owners = _owner_of_rows(step, parts)
    if owners is None:
        return found[0]
    whole = np.empty(step.targets, dtype=np.float32)
    for part, values in enumerate(found):
        whole[owners[step.src] == part] = values
    return whole


def _owner_of_rows(step: PackedMicroStep, parts: int) -> NDArray[np.int64] | None:
    """The part of each row; None where there is one."""
    starts = _trees(step.end)
    if parts == 1 or len(starts) < 2:
        return None
    sizes = np.diff([*starts, step.tokens])
    return np.repeat(_owners(sizes, parts), sizes)


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
        share=_of_targets(step.share, kept),
        reference=_of_targets(step.reference, kept),
        experts=step.experts[rows] if step.experts.size else step.experts,
    )


def _of_targets(values: NDArray[Any], kept: NDArray[np.bool_]) -> NDArray[Any]:
    """Those of the targets that are kept; what a micro-step does not have, its parts have not either."""
    return values[kept] if len(values) else values


def _executions(step: PackedMicroStep, kept: NDArray[np.bool_]) -> tuple[tuple[str, int, int], ...]:
    before = np.concatenate([[0], np.cumsum(kept)])
    found = ((name, int(before[first]), int(before[first + count] - before[first])) for name, first, count in step.executions)
    return tuple(entry for entry in found if entry[2])

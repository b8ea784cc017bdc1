"""When evaluations are due, and what they are called: known alike to the runner that dispatches and the core that waits."""

from __future__ import annotations

import re
from dataclasses import dataclass

_GROUP = re.compile(r"(v\d{3,}-.+)-\d{4,}")


@dataclass(frozen=True, slots=True)
class EvaluationPlan:
    """Of [eval]; empty splits and 0: none. `tasks` 0: all of the split."""

    every: int = 0
    split: str = "val"
    before: str = ""
    after: str = ""
    tasks: int = 0
    samples: int = 1

    def due(self, version: int, earlier: int, steps: int) -> tuple[str, ...]:
        """Splits to evaluate at a published `version`; `earlier`: the version published before it, -1 for none."""
        splits: list[str] = []
        if version == 0 and self.before:
            splits.append(self.before)
        if self.every and version > 0 and version // self.every > max(earlier, 0) // self.every:
            splits.append(self.split)
        if version >= steps and self.after:
            splits.append(self.after)
        return tuple(dict.fromkeys(splits))

    def pinned_before(self, version: int, mu: int, steps: int) -> tuple[str, ...]:
        """Names of the evaluations that sample with the version that engines held before `version` is published to them."""
        held = (version - 1) // mu * mu
        earlier = held - mu if held > 0 else -1
        return tuple(evaluation_name(held, split) for split in self.due(held, earlier, steps)) if version > 0 else ()


def evaluation_name(version: int, split: str) -> str:
    """`v020-val`"""
    return f"v{version:03d}-{split}"


def evaluation_group(evaluation: str, number: int) -> str:
    """Name of one of its groups: `v020-val-0003`; groups that train are named otherwise."""
    return f"{evaluation}-{number:04d}"


def evaluation_of(group: str) -> str | None:
    """The evaluation that a group belongs to, by its name; None: it trains."""
    match = _GROUP.fullmatch(group)
    return match[1] if match else None

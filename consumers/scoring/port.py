"""What a scorer is: one method, from a finished execution to a score."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import fsspec

from gyre_engine.events.executions import Dispatched, Finished
from gyre_engine.tasks import Task
from gyre_engine.work_product import Unpacked, WorkProductError, unpack


class EvaluationBroken(Exception):
    """The evaluation itself failed (not: the work is bad); it is tried again within the budget. The text says what broke."""


@dataclass(frozen=True, slots=True)
class Score:
    """`rewards`: the parts of `reward` where there are several; `flags`: what the scorer noticed, short words."""

    reward: float
    rewards: Mapping[str, float] = field(default_factory=dict)
    flags: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ScoredExecution:
    """A finished execution as a scorer sees it. `task` is None where its folder is not on this machine."""

    dispatched: Dispatched
    finished: Finished
    task: Task | None

    def work(self) -> bytes:
        """The tar of the work product. Raises EvaluationBroken where it cannot be read or is not what was kept."""
        try:
            with fsspec.open(self.finished.work_url, "rb") as file:
                data: bytes = file.read()
        except OSError as error:
            raise EvaluationBroken(f"cannot read the work product {self.finished.work_url}: {error}") from error
        if hashlib.sha256(data).hexdigest() != self.finished.work_hash:
            raise EvaluationBroken(f"the work product {self.finished.work_url} is not the one that was kept: its hash differs")
        return data

    def unpack(self, root: Path, keep: Callable[[str], bool] = lambda name: True) -> Unpacked:
        """A fresh copy of the work below the empty folder `root`, which stands for `/`. Raises EvaluationBroken or OSError."""
        try:
            return unpack(self.work(), root, keep)
        except WorkProductError as error:
            raise EvaluationBroken(str(error)) from error


class Scorer(Protocol):
    """Anything with a name, a version and this method. A new version scores anew, beside the old scores."""

    name: str
    version: str

    async def score(self, execution: ScoredExecution) -> Score:
        """The score. Raises EvaluationBroken; any other exception is taken for one, too."""

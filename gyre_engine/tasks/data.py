"""Which task comes next: weighted sources, a seeded shuffle, epochs (learning.md, 11). Pure: a position gives the same task for ever.

The position of the last draw stands in the Dispatched events, so it resumes from the log.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gyre_engine.tasks.datasets import DataError, task_folders
from gyre_engine.tasks.task import Task, TaskError, read_task

SPLITS = ("train", "val", "test")


@dataclass(frozen=True, slots=True)
class Source:
    """One [[data]] source: where its tasks lie (datasets.py)."""

    name: str
    folder: Path
    split: str = "train"
    weight: float = 1.0

    @property
    def there(self) -> bool:
        """Whether anything is at the place that it names."""
        return Path(str(self.folder).partition("#")[0]).exists()


@dataclass(frozen=True, slots=True)
class Catalog:
    """Every task of every source; (split, source name) -> tasks by name."""

    sources: tuple[Source, ...]
    tasks: Mapping[tuple[str, str], Mapping[str, Task]]

    def find(self, split: str, source: str, query: str) -> Task:
        """The task of a Dispatched event. Raises DataError."""
        try:
            return self.tasks[split, source][query]
        except KeyError:
            raise DataError(
                f"no task {query!r} in source {source!r} of split {split!r}: was the data changed during the run?"
            ) from None

    def of_split(self, split: str) -> list[tuple[str, Task]]:
        """(source name, task) of a split, sorted by both."""
        pairs = [(s.name, task) for s in self.sources if s.split == split for task in self.tasks[split, s.name].values()]
        return sorted(pairs, key=lambda pair: (pair[0], pair[1].name))


@dataclass(frozen=True, slots=True)
class Draw:
    """The task at a position of the draw order; `epoch` counts passes through its source."""

    position: int
    source: str
    epoch: int
    query: str


def load_catalog(sources: Sequence[Source]) -> Catalog:
    """Reads all tasks. Raises TaskError or DataError: an empty source, a name used twice, a task in two splits."""
    tasks: dict[tuple[str, str], dict[str, Task]] = {}
    for source in sources:
        if source.split not in SPLITS or not source.weight > 0:
            raise DataError(f"source {source.name!r}: split must be one of {', '.join(SPLITS)} and weight above 0")
        if (source.split, source.name) in tasks:
            raise DataError(f"two sources of split {source.split!r} are named {source.name!r}: give one another name")
        tasks[source.split, source.name] = _read_source(source)
    catalog = Catalog(tuple(sources), tasks)
    _check_splits(catalog)
    return catalog


def _read_source(source: Source) -> dict[str, Task]:
    try:
        found = task_folders(source.folder)
    except DataError as error:
        raise DataError(f"source {source.name!r}: {error}") from error
    return {name: read_task(folder, name) for name, folder in found.items()}


def fingerprint(task: Task) -> str:
    """What makes two tasks the same: what is asked and what judges it, whatever the folder is called."""
    digest = hashlib.sha256(task.instruction.strip().encode())
    for path in sorted(p for p in task.tests.rglob("*") if p.is_file()):
        digest.update(b"\0" + str(path.relative_to(task.tests)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def _check_splits(catalog: Catalog) -> None:
    seen: dict[str, tuple[str, Task]] = {}
    for split in SPLITS:
        for _, task in catalog.of_split(split):
            first, twin = seen.setdefault(fingerprint(task), (split, task))
            if first != split:
                raise TaskError(
                    f"{task.folder} ({split}) is the same task as {twin.folder} ({first}): "
                    "results on it would be worth nothing, take it out of one of them"
                )


class DrawOrder:
    """The endless sequence of draws of one split."""

    def __init__(self, catalog: Catalog, split: str, seed: int) -> None:
        self._sources = sorted((s for s in catalog.sources if s.split == split), key=lambda s: s.name)
        if not self._sources:
            raise DataError(f"no [[data]] source has split {split!r}: add one")
        self._names = {s.name: sorted(catalog.tasks[split, s.name]) for s in self._sources}
        self._seed, self._split = seed, split
        self._counts = dict.fromkeys(self._names, 0)
        self._drawn: list[Draw] = []

    def at(self, position: int) -> Draw:
        """The draw at `position` (from 0)."""
        while len(self._drawn) <= position:
            self._drawn.append(self._next(len(self._drawn)))
        return self._drawn[position]

    def _next(self, position: int) -> Draw:
        total = sum(s.weight for s in self._sources)
        behind = max(self._sources, key=lambda s: (s.weight / total * (position + 1) - self._counts[s.name], s.name))
        names, count = self._names[behind.name], self._counts[behind.name]
        self._counts[behind.name] += 1
        epoch, index = divmod(count, len(names))
        return Draw(position, behind.name, epoch, self._shuffled(behind.name, epoch)[index])

    def _shuffled(self, source: str, epoch: int) -> list[str]:
        names = list(self._names[source])
        random.Random(f"{self._seed}/{self._split}/{source}/{epoch}").shuffle(names)  # noqa: S311 - reproducible, not secret
        return names

    @property
    def size(self) -> int:
        """Draws after which every task of every source has been seen."""
        share = sum(s.weight for s in self._sources)
        return max(int(len(self._names[s.name]) * share / s.weight) + len(self._sources) for s in self._sources)


Keep = Callable[[float | None], bool]
"""Whether a task with this mean reward so far (None: not tried yet) is worth another group."""


def every_task(rate: float | None) -> bool:
    """Filter `none`."""
    return True


def unsolved_and_possible(rate: float | None) -> bool:
    """Filter `pass-rate`: leaves out what was always or never solved in its last group."""
    return rate is None or 0.0 < rate < 1.0


FILTERS: Mapping[str, Keep] = {"none": every_task, "pass-rate": unsolved_and_possible}


def draw(order: DrawOrder, position: int, rates: Mapping[tuple[str, str], float], keep: Keep) -> Draw:
    """The first draw at or after `position` that `keep` lets through; where none of a whole pass does, the one at `position`."""
    for candidate in range(position, position + order.size):
        drawn = order.at(candidate)
        if keep(rates.get((drawn.source, drawn.query))):
            return drawn
    return order.at(position)

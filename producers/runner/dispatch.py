"""What is dispatched when (method.md, 1): (phi + mu) * B groups at first, mu * B more at each publication of weights.

Pure: the runner logs what these functions return.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from gyre_engine.events.executions import Dispatched, execution_name
from gyre_engine.scheduling.classes import ClassPlan
from gyre_engine.scheduling.evaluations import evaluation_group, evaluation_name
from gyre_engine.tasks import Catalog, Draw, DrawOrder


@dataclass(frozen=True, slots=True)
class GroupShape:
    """What all groups of the run share. `size`: N."""

    size: int
    harness: str


def due_groups(plan: ClassPlan, dispatched: int, published: int) -> range:
    """Numbers of the groups to dispatch now, `dispatched` of them being out and version `published` being the samplers'."""
    return range(dispatched, max(dispatched, plan.dispatched_at(published)))


def training_group(plan: ClassPlan, shape: GroupShape, number: int, drawn: Draw, version: int) -> Iterator[Dispatched]:
    """The N executions of a training group."""
    group = f"g{number:06d}"
    for index in range(shape.size):
        yield Dispatched(
            execution=execution_name(group, index, 0), group=group, index=index, attempt=0, group_size=shape.size, group_number=number,
            class_number=plan.class_of(number), query=drawn.query, source=drawn.source, split="train", harness=shape.harness,
            weight_version=version, draw=drawn.position,
        )  # fmt: skip


def training_groups(
    plan: ClassPlan, shape: GroupShape, dispatched: int, position: int, published: int, draw: Callable[[int], Draw]
) -> Iterator[Dispatched]:
    """All executions that are due; `draw` gives the task at or after a position of the draw order."""
    for number in due_groups(plan, dispatched, published):
        drawn = draw(position)
        position = drawn.position + 1
        yield from training_group(plan, shape, number, drawn, published)


@dataclass(frozen=True, slots=True)
class Evaluation:
    """One evaluation: every task of `tasks` (source, query), `samples` executions each, at one weight version."""

    name: str
    split: str
    version: int
    tasks: tuple[tuple[str, str], ...]
    samples: int

    def groups(self, harness: str) -> Iterator[Dispatched]:
        """Its executions, group by group."""
        for number, (source, query) in enumerate(self.tasks):
            group = evaluation_group(self.name, number)
            for index in range(self.samples):
                yield Dispatched(
                    execution=execution_name(group, index, 0), group=group, index=index, attempt=0, group_size=self.samples,
                    group_number=number, class_number=0, query=query, source=source, split=self.split, harness=harness,
                    weight_version=self.version, evaluation=self.name,
                )  # fmt: skip


def evaluation_tasks(catalog: Catalog, split: str, count: int, seed: int) -> list[tuple[str, str]]:
    """(source, query) of a split: all, or the first `count` in the seeded order of draws, the same in every evaluation."""
    everything = [(source, task.name) for source, task in catalog.of_split(split)]
    if not 0 < count < len(everything):
        return everything
    order, chosen, position = DrawOrder(catalog, split, seed), dict[tuple[str, str], None](), 0
    while len(chosen) < count:
        drawn = order.at(position)
        chosen[drawn.source, drawn.query] = None
        position += 1
    return sorted(chosen)


def plan_evaluation(split: str, tasks: Sequence[tuple[str, str]], samples: int, version: int) -> Evaluation:
    """The evaluation of a split at a version."""
    return Evaluation(evaluation_name(version, split), split, version, tuple(tasks), samples)

"""Writes the quickstart's tasks as Harbor task directories: `python -m examples.quickstart.tasks OUT --seed N`.

A task is a family, a function name and a constant. Which split it belongs to follows from those three alone (a hash),
so no seed can put a task in two splits: held-out tasks are unseen combinations of names and constants that training has
seen apart.
"""

import argparse
import functools
import hashlib
import itertools
import random
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import CodeType
from typing import Literal

from examples.quickstart.checker import Case
from examples.quickstart.families import FAMILIES, NAMES, Family, instruction, source
from examples.quickstart.prompt import PATH

Split = Literal["train", "val", "test"]
SPLITS: tuple[Split, ...] = ("train", "val", "test")
COUNTS: Mapping[Split, int] = {"train": 400, "val": 64, "test": 128}

VISIBLE, HIDDEN, CANDIDATES, LONGEST_REPR = 2, 4, 40, 40

_TOML = """version = "1.0"

[metadata]
difficulty = "easy"
category = "programming"
tags = ["quickstart", "{family}"]

[agent]
timeout_sec = 60.0

[verifier]
timeout_sec = 30.0
"""
_DOCKERFILE = "FROM python:3.11-slim\nWORKDIR /app\nCOPY check.sh check.py /app/\n"
_CHECK = "#!/bin/sh\n# Visible tests of solution.py: `ok`, or the first that fails.\nexec python3 -I -S check.py solution.py\n"
_TEST = """#!/bin/sh
# Writes the fraction of hidden tests that /app/solution.py passes.
here=$(CDPATH= cd -- "$(dirname -- "$0")" && pwd)
exec python3 -I -S "$here/verify.py" "${1:-/app}/solution.py" "${2:-/logs/verifier/reward.txt}"
"""
_SOLVE = "#!/bin/sh\ncat > solution.py <<'END'\n{source}END\n"


@dataclass(frozen=True, slots=True)
class Task:
    """One task: what is asked and the cases that judge it."""

    id: str
    family: Family
    name: str
    constant: str | None
    visible: tuple[Case, ...]
    hidden: tuple[Case, ...]

    @property
    def instruction(self) -> str:
        return instruction(self.family, self.name, self.constant)

    @property
    def solution(self) -> str:
        """The reference solution's file."""
        return source(self.family, self.name, self.family.right, self.constant)

    @property
    def mistakes(self) -> tuple[str, ...]:
        """The files of the family's wrong solutions."""
        return tuple(source(self.family, self.name, body, self.constant) for body in self.family.wrong)


@functools.cache
def _compiled(code: str) -> CodeType:
    return compile(code, PATH, "exec")


def outcome(code: str, name: str, args: tuple[object, ...]) -> str:
    """What the generator's own code answers, as the checker words it: '=' and a repr, or '!' and an error's name.

    Only for code of `families`, which ends: nothing limits it here.
    """
    scope: dict[str, object] = {}
    try:
        exec(_compiled(code), scope)  # noqa: S102 - our own text
        function = scope[name]
        return "=" + repr(function(*args)) if callable(function) else "!NotCallable"
    except Exception as error:
        return "!" + type(error).__name__


def result(code: str, name: str, args: tuple[object, ...]) -> object:
    """What the reference solution returns."""
    scope: dict[str, object] = {}
    exec(_compiled(code), scope)  # noqa: S102 - our own text
    function = scope[name]
    if not callable(function):
        raise TypeError(f"{name} is not a function in the reference solution: {code!r}")
    return function(*args)


def split_of(task_id: str) -> Split:
    """70 % of all tasks train, 12 % val, 18 % test; by hash, so the same for every seed."""
    point = int.from_bytes(hashlib.sha256(task_id.encode()).digest()[:4]) % 100
    return "train" if point < 70 else "val" if point < 82 else "test"


def task_id(family: Family, name: str, constant: str | None) -> str:
    return "-".join(part.replace("_", "-") for part in (family.key, name, constant) if part is not None)


def _candidates(family: Family, name: str, constant: str | None) -> list[tuple[Case, frozenset[int]]]:
    """Drawn cases, each with the wrong solutions that it exposes."""
    rng = random.Random(task_id(family, name, constant))  # noqa: S311 - reproducible, not secret
    right = source(family, name, family.right, constant)
    wrong = [source(family, name, body, constant) for body in family.wrong]
    drawn = {repr(args): args for args in (family.given.draw(rng) for _ in range(CANDIDATES))}
    scored = []
    for args in drawn.values():
        want = outcome(right, name, args)
        if want.startswith("=") and len(want) <= LONGEST_REPR:
            exposed = frozenset(i for i, code in enumerate(wrong) if outcome(code, name, args) != want)
            scored.append(((args, result(right, name, args)), exposed))
    return scored


def _telling(scored: list[tuple[Case, frozenset[int]]], count: int) -> list[Case]:
    """Takes from `scored` the cases that expose most, new mistakes and new answers first."""
    chosen: list[Case] = []
    covered: frozenset[int] = frozenset()
    while scored and len(chosen) < count:
        seen = {repr(want) for _, want in chosen}
        best = max(scored, key=lambda item: len(item[1]) + 2 * len(item[1] - covered) + (repr(item[0][1]) not in seen))
        scored.remove(best)
        chosen.append(best[0])
        covered |= best[1]
    return chosen


def make_task(family: Family, name: str, constant: str | None) -> Task:
    """The task of one combination; the same cases every time.

    Half of the hidden cases are the most telling ones, half are as drawn, so that some mistakes earn partial credit.
    Raises ValueError where the family draws too few cases.
    """
    scored = _candidates(family, name, constant)
    if len(scored) < VISIBLE + HIDDEN:
        raise ValueError(f"family {family.key} draws only {len(scored)} usable cases; widen its draw")
    hidden, visible = _telling(scored, HIDDEN // 2), _telling(scored, VISIBLE)
    hidden += [case for case, _ in scored[: HIDDEN - len(hidden)]]
    return Task(task_id(family, name, constant), family, name, constant, tuple(visible), tuple(hidden))


def combinations(split: Split) -> list[tuple[Family, str, str | None]]:
    """Every combination of the split, in a fixed order."""
    every = ((f, name, c) for f in FAMILIES for name, c in itertools.product(NAMES, f.constants or (None,)))
    return [combination for combination in every if split_of(task_id(*combination)) == split]


def draw_tasks(split: Split, count: int, seed: int) -> list[Task]:
    """`count` tasks of the split, all families alike, in a seeded order.

    Raises ValueError when the split holds fewer.
    """
    rng = random.Random(f"{split}-{seed}")  # noqa: S311 - reproducible, not secret
    pool = combinations(split)
    rng.shuffle(pool)
    by_family = [[c for c in pool if c[0] is family] for family in FAMILIES]
    rng.shuffle(by_family)
    rounds = [c for row in itertools.zip_longest(*by_family) for c in row if c is not None]
    if count > len(rounds):
        raise ValueError(f"the {split} split holds {len(rounds)} tasks, {count} were asked for")
    return [make_task(*combination) for combination in rounds[:count]]


def checker_source(name: str, cases: tuple[Case, ...]) -> str:
    """The text of check.py or verify.py: the checker, then its call with these cases."""
    body = Path(__file__).with_name("checker.py").read_text(encoding="utf-8")
    return f"{body}\n\nsys.exit(main({name!r}, {list(cases)!r}))\n"


def files(task: Task) -> dict[str, str]:
    """The task directory: relative path -> text."""
    return {
        "task.toml": _TOML.format(family=task.family.key),
        "instruction.md": task.instruction + "\n",
        "environment/Dockerfile": _DOCKERFILE,
        "environment/check.sh": _CHECK,
        "environment/check.py": checker_source(task.name, task.visible),
        "tests/test.sh": _TEST,
        "tests/verify.py": checker_source(task.name, task.hidden),
        "solution/solve.sh": _SOLVE.format(source=task.solution),
    }


def write_task(folder: Path, task: Task) -> None:
    """Writes one Harbor task directory; what stands there under these names is replaced."""
    for relative, text in files(task).items():
        path = folder / relative
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        if path.suffix == ".sh":
            path.chmod(0o755)


def write_tasks(root: Path, seed: int, counts: Mapping[Split, int] = COUNTS) -> dict[Split, list[str]]:
    """Writes root/train, root/val and root/test; returns the task ids of each.

    Raises ValueError when a split holds fewer tasks than asked for.
    """
    written: dict[Split, list[str]] = {}
    for split in SPLITS:
        tasks = draw_tasks(split, counts.get(split, 0), seed)
        for task in tasks:
            write_task(root / split / task.id, task)
        written[split] = [task.id for task in tasks]
    return written


def main() -> None:
    parser = argparse.ArgumentParser(description="Writes the quickstart's Harbor tasks.")
    parser.add_argument("out", type=Path, help="folder for train/, val/ and test/")
    parser.add_argument("--seed", type=int, default=0)
    for split in SPLITS:
        parser.add_argument(f"--{split}", type=int, default=COUNTS[split], metavar="N", help=f"{split} tasks")
    given = parser.parse_args()
    written = write_tasks(given.out, given.seed, {split: getattr(given, split) for split in SPLITS})
    print(", ".join(f"{len(ids)} {split}" for split, ids in written.items()), "tasks in", given.out)


if __name__ == "__main__":
    main()

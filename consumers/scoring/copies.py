"""What the verifiers share: an evaluation works on a copy of its own, without what an agent may have planted in the work.

Left out and flagged: reward files, and modules that Python or pytest load unasked, unless the task itself brings them.
"""

from __future__ import annotations

import asyncio
import fnmatch
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path

from consumers.scoring.port import EvaluationBroken, Score, ScoredExecution
from gyre_engine.tasks import Task
from gyre_engine.work_product import Unpacked, remove_tree

PLANTED = ("conftest.py", "sitecustomize.py", "usercustomize.py", "pytest.ini", "*.pth")

Verify = Callable[[ScoredExecution, Task, Path], Awaitable[Score]]
"""In a fresh folder."""


async def on_a_copy(execution: ScoredExecution, scratch: Path, verify: Verify) -> Score:
    """What `verify` finds; work that was never begun scores 0 without it (learning.md, 4). Raises EvaluationBroken."""
    if not execution.finished.did_work:
        return Score(0.0, flags=("nothing-left",))
    if execution.task is None:
        raise EvaluationBroken(f"the task {execution.dispatched.query!r} is not on this machine: its tests cannot be run")
    folder = Path(tempfile.mkdtemp(prefix=f"{execution.finished.execution}-", dir=scratch))
    try:
        return await verify(execution, execution.task, folder)
    finally:
        await asyncio.to_thread(remove_tree, folder)


def is_planted(name: str) -> bool:
    """Whether a file of this name is taken from the task only."""
    return any(fnmatch.fnmatchcase(name.rsplit("/", 1)[-1], pattern) for pattern in PLANTED)


def own_planted(task: Task) -> frozenset[str]:
    """Names of such files that the task itself brings."""
    return frozenset(path.name for path in (task.folder / "environment").rglob("*") if is_planted(path.name))


def flags(unpacked: Unpacked, detail: str, own: frozenset[str]) -> tuple[str, ...]:
    """Short words for what is worth a look."""
    said = [f"refused {what}" for what in unpacked.refused]
    written = [name for name in unpacked.left_out if name.startswith("logs/verifier/")]
    planted = [n for n in unpacked.left_out if n != "logs" and not n.startswith("logs/") and n.rsplit("/", 1)[-1] not in own]
    said += [f"reward-written {name}" for name in written] + [f"planted {name}" for name in planted]
    if "left out " in detail:
        said.append(detail[detail.index("left out ") :])
    return tuple(flag[:200] for flag in said[:20])

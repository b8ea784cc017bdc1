"""The picture of the architecture has an arrow for what each process says that it reads and writes, and no other."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.unit.house.test_topics_said import said, topics_in

PICTURE = (Path(__file__).parents[3] / "docs/architecture.md").read_text().partition("```mermaid\n")[2].partition("```")[0]
GROUPS = {node: set(topics.split(" · ")) for node, topics in re.findall(r"(T\d)\[(.*?)\]", PICTURE)}
PROCESSES = {
    "runner": "producers.runner.process",
    "proxy": "producers.proxy.process",
    "agent": "producers.cells.agent",
    "scoring": "consumers.scoring.process",
    "streams": "streams.process",
    "scheduler": "consumers.scheduler.process",
    "trainer": "consumers.trainer.process",
}


def arrows() -> set[tuple[str, str]]:
    """(from, to) of each arrow between two nodes."""
    found: set[tuple[str, str]] = set()
    for line in PICTURE.splitlines():
        parts = re.split(r"\s*(<?-\.?->)(?:\|[^|]*\|)?\s*", re.sub(r"[\[(]+[^|]*?[\])]+", "", line.strip()))
        for left, arrow, right in zip(parts[::2], parts[1::2], parts[2::2], strict=False):
            pairs = {(a, b) for a in left.split(" & ") for b in right.split(" & ")}
            found |= pairs | ({(b, a) for a, b in pairs} if arrow.startswith("<") else set())
    return found


def drawn(topics: set[str]) -> set[str]:
    """The groups of the picture in which any of these stands."""
    return {node for node, group in GROUPS.items() if group & topics}


@pytest.mark.parametrize("process", PROCESSES)
def test_what_is_drawn_is_what_is_read_and_written(process: str) -> None:
    into = {a for a, b in arrows() if b == process and a in GROUPS}
    out = {b for a, b in arrows() if a == process and b in GROUPS}
    assert (into, out) == (
        drawn(topics_in(said(PROCESSES[process], "reads"))), drawn(topics_in(said(PROCESSES[process], "writes"))),
    )  # fmt: skip

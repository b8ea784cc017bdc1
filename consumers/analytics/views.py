"""The questions that come with Gyre, as views. docs/sql.md shows each with an example."""

from __future__ import annotations


def create_views() -> tuple[str, ...]:
    """The statements that make every view, in an order in which each finds what it reads."""
    return ()

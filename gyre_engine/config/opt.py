"""The one way to declare a field of the config: its default and its documentation."""

from __future__ import annotations

from dataclasses import field
from typing import Any


def opt(default: Any, doc: str) -> Any:
    """A field with a default and its documentation."""
    if isinstance(default, (list, dict)):
        raise TypeError("defaults are immutable")
    if callable(default):
        return field(default_factory=default, metadata={"doc": doc})
    return field(default=default, metadata={"doc": doc})

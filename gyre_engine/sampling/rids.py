"""Names of requests at engines: they tell whose execution a request is."""

from __future__ import annotations

from uuid import uuid4

END_OF_RID = "/"
"""Stands behind a rid on its way to SGLang, which aborts every rid that begins with the one that it is given: so none does."""


def new_rid(execution: str) -> str:
    """A name that no other request has."""
    return f"{execution}-{uuid4().hex[:12]}"


def execution_of(rid: str) -> str:
    """The execution of a request, whatever its engine calls it (`rid.1`, `rid.2` where it moved)."""
    return rid.rpartition("-")[0]

"""Versions of the packages that decide what a run derives: a run goes on, is joined, and is compared by a replay, only with the same
(log-rules, 15)."""

from __future__ import annotations

import importlib.metadata

PINNED = ("gyre", "torch", "megatron-core", "faust-streaming", "confluent-kafka", "renderers", "tokenizers", "chdb")


def versions() -> dict[str, str]:
    """Of this installation."""
    return {name: importlib.metadata.version(name) for name in PINNED}

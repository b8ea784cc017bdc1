"""The probe of a version that no recorded path can probe: the initial weights, and a step in which nothing trained. Pure."""

from __future__ import annotations

_FACTOR, _STEP = 6364136223846793005, 1442695040888963407
"""Of a linear congruential generator modulo 2**64: the same ids wherever and whenever they are drawn."""
LENGTH = 64


def fixed_probe(vocabulary: int, context: int = LENGTH) -> list[int]:
    """Ids spread over the vocabulary, as many as the context takes: the same for every model of that many ids. None for none."""
    state, ids = 0, []
    for _ in range(min(LENGTH, context) if vocabulary > 1 else 0):
        state = (state * _FACTOR + _STEP) % 2**64
        ids.append((state >> 32) * vocabulary >> 32)
    return ids

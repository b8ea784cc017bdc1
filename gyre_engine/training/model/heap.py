"""Freed activations stay with the process: the next micro-step writes where the last one did, instead of faulting in fresh pages."""

from __future__ import annotations

import ctypes

_TRIM, _MMAP = -1, -3  # mallopt's M_TRIM_THRESHOLD and M_MMAP_THRESHOLD
_KEPT, _FROM_THE_HEAP = 256 << 20, 1 << 30


def keep_freed_memory() -> None:
    """Up to 256 MiB at the heap's end; tensors below 1 GiB come from the heap. Nothing where the C library is not glibc."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_TRIM, _KEPT)
        mallopt(_MMAP, _FROM_THE_HEAP)

"""Bytes that were published with their SHA-256, read from whoever has them, over as many reads as that takes.

promises  what is given out has the published hash, whoever served it; what was verified is not read again
"""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import NDArray

from gyre_engine.transfer.port import Descriptor, IntegrityError, Progress, Region, Transfer


class Pull:
    """One target for the reads of one thing at a time; another hash begins another."""

    def __init__(self, transfer: Transfer) -> None:
        self._transfer = transfer
        self._sha256 = ""
        self._into: NDArray[np.uint8] = np.empty(0, dtype=np.uint8)
        self._progress = Progress()

    def read(self, sha256: str, nbytes: int, descriptor: bytes, timeout: float) -> NDArray[np.uint8]:
        """The bytes with that hash (hex), which `descriptor` points at; they are the caller's then. Raises the transfer's errors."""
        source = Descriptor.from_bytes(descriptor)
        if (self._sha256, self._into.nbytes) != (sha256, nbytes):
            self._sha256, self._into, self._progress = sha256, np.empty(nbytes, dtype=np.uint8), Progress()
        self._transfer.read(source, Region.of_array(self._into), timeout=timeout, progress=self._progress)
        whole, self._sha256, self._into = self._into, "", np.empty(0, dtype=np.uint8)
        if (found := hashlib.sha256(whole.data).hexdigest()) != sha256:
            raise IntegrityError(
                f"{nbytes} bytes from {source.host}:{source.port} hash to {found[:16]}, published as {sha256[:16]}"
            )
        return whole

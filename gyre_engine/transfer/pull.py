"""Bytes that are read from whoever has them, over as many reads as that takes: what was verified is not read again."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gyre_engine.transfer.port import Descriptor, Progress, Region, Transfer


class Pull:
    """One target for the reads of one thing at a time; another name begins another."""

    def __init__(self, transfer: Transfer) -> None:
        self._transfer = transfer
        self._name = ""
        self._into: NDArray[np.uint8] = np.empty(0, dtype=np.uint8)
        self._progress = Progress()

    def read(self, name: str, nbytes: int, descriptor: bytes, timeout: float) -> NDArray[np.uint8]:
        """All bytes of `name`, which `descriptor` points at; they are the caller's then. Raises the transfer's errors."""
        source = Descriptor.from_bytes(descriptor)
        if (self._name, self._into.nbytes) != (name, nbytes):
            self._name, self._into, self._progress = name, np.empty(nbytes, dtype=np.uint8), Progress()
        self._transfer.read(source, Region.of_array(self._into), timeout=timeout, progress=self._progress)
        whole, self._name, self._into = self._into, "", np.empty(0, dtype=np.uint8)
        return whole

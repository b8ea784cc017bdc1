"""Pages of KV by key, bounded in bytes, the least recently used leaving first; of one version of the weights (learning.md, 9).

promises  a page is given and taken only under the version that it was computed with: while the store is shut nothing is, and what
          began under another version is not taken in; memory stays below the capacity, what is lent out included

A key says which tokens a page was computed for, not by which weights: SGLang does not know of the latter here. So the store is told.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Page = NDArray[np.uint8]


class PageStore:
    """capacity: in bytes. version: of the weights that pages are computed with; None, as while it is shut: of nobody knows which."""

    def __init__(self, capacity: int, version: str | None) -> None:
        self.capacity = capacity
        self._version = self._of = version
        self._pages: OrderedDict[str, Page] = OrderedDict()
        self._kept = self._lent = 0
        self._last_put = time.monotonic()
        self._changed = threading.Condition()

    @property
    def version(self) -> str | None:
        """Whose pages are given and taken now."""
        return self._version

    @property
    def nbytes(self) -> int:
        """Of pages, and of what is lent out."""
        with self._changed:
            return self._kept + self._lent

    def shut(self) -> None:
        """From here on nothing is given or taken: the weights are about to change."""
        with self._changed:
            self._version = None

    def open(self, version: str) -> None:
        """The engine computes with these weights now. Pages of others are dropped; those of the same are still good."""
        with self._changed:
            if version != self._of:
                self._clear()
            self._version = self._of = version

    def clear(self) -> None:
        """Forget all pages."""
        with self._changed:
            self._clear()

    def put(self, key: str, page: Page, version: str | None) -> bool:
        """Keep a page, which is the store's from here on. version: of the store when the page began to be read."""
        with self._changed:
            if version is None or version != self._version or not self._make_room(page.nbytes):
                return False
            self._drop(key)
            self._pages[key] = page
            self._kept += page.nbytes
            self._last_put = time.monotonic()
            self._changed.notify_all()
            return True

    def get(self, key: str) -> Page | None:
        """A page, which is never written to again."""
        with self._changed:
            return self._pages.get(key) if self._version is not None else None

    def prefix(self, keys: Sequence[str]) -> int:
        """How many of the keys are there, from the first on without a gap. The first are the last to leave."""
        with self._changed:
            return self._prefix(keys)

    def awaited(self, keys: Sequence[str], quiet_s: float) -> int:
        """As `prefix`, once all are there or none has come for so long: SGLang writes pages a moment after a request has ended."""
        with self._changed:
            began = time.monotonic()
            while (found := self._prefix(keys)) < len(keys):
                left = max(began, self._last_put) + quiet_s - time.monotonic()
                if left <= 0 or self._version is None:
                    break
                self._changed.wait(left)
            return found

    def lend(self, nbytes: int) -> bool:
        """Reserve memory for a copy, in the place of the oldest pages; False where that would be too much."""
        with self._changed:
            if not self._make_room(nbytes):
                return False
            self._lent += nbytes
            return True

    def give_back(self, nbytes: int) -> None:
        """What was lent is free again."""
        with self._changed:
            self._lent -= nbytes

    def _prefix(self, keys: Sequence[str]) -> int:
        if self._version is None:
            return 0
        found = next((at for at, key in enumerate(keys) if key not in self._pages), len(keys))
        for key in reversed(keys[:found]):
            self._pages.move_to_end(key)
        return found

    def _make_room(self, nbytes: int) -> bool:
        if nbytes > self.capacity - self._lent:
            return False
        while self._kept > self.capacity - self._lent - nbytes:
            self._drop(next(iter(self._pages)))
        return True

    def _drop(self, key: str) -> None:
        page = self._pages.pop(key, None)
        self._kept -= page.nbytes if page is not None else 0

    def _clear(self) -> None:
        self._pages.clear()
        self._kept = 0

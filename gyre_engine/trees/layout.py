"""Layouts: the tokens of a line of calls in one piece, so that what goes on from it need not gather them delta by delta."""

from __future__ import annotations

import mmap
from dataclasses import dataclass

import numpy as np

from gyre_engine.events.codec import Int32

ROOM = 1 << 20
"""Tokens of address space that a layout takes at least; memory is used as it fills."""


@dataclass(slots=True)
class Layout:
    """The path of `call`, in the first `length` tokens of `room`. What stands there is never changed.

    lent: how far `room` was filled beyond `length` for readers of prompts that are not recorded yet
    """

    call: str
    length: int
    room: Int32
    lent: int = 0

    @classmethod
    def of(cls, call: str, path: Int32) -> Layout:
        """The path laid out anew."""
        room = np.frombuffer(
            mmap.mmap(-1, 4 * max(ROOM, 2 * len(path)), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS), dtype=np.int32
        )
        room[: len(path)] = path
        return cls(call, len(path), room)

    def append(self, call: str, delta: Int32) -> Int32 | None:
        """Go on to a call that hangs at the end. Its delta as it stands here, to be read; None where it cannot stand here."""
        start = self.length
        if not self._put(delta):
            return None
        self.call, self.length = call, start + len(delta)
        return _read_only(self.room[start : self.length])

    def lend(self, new: Int32) -> Int32:
        """The path and `new` after it, to be read; a copy where others read something else there, or there is no room."""
        if not self._put(new):
            return np.concatenate([self.room[: self.length], new])
        return _read_only(self.room[: self.length + len(new)])

    def _put(self, ids: Int32) -> bool:
        """Write `ids` at the end, unless something else is being read there."""
        end = self.length + len(ids)
        lent = self.room[self.length : self.lent]
        both = min(len(lent), len(ids))
        if end > len(self.room) or not np.array_equal(lent[:both], ids[:both]):
            return False
        self.room[self.length : end] = ids
        self.lent = max(self.lent, end)
        return True


def _read_only(view: Int32) -> Int32:
    view.flags.writeable = False
    return view

"""Paths: the token sequences of one execution, kept as the deltas of its calls.

A call's path is its parent's path cut to `prefix_len` tokens, then its own delta (new input, then output). The
canonical parent is the call whose own delta holds token `prefix_len - 1`, so there is one way to write a path down, and
its hash chains from delta to delta: hash(prefix of length k) = H(prefix_hash of the holder, the holder's delta up to
k).
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, replace

import numpy as np

from gyre_engine.events.codec import Int32
from gyre_engine.trees.layout import Layout

ROOT_HASH = bytes(16)
"""The hash of the empty path."""


def extend_hash(prefix_hash: bytes, ids: Int32) -> bytes:
    """The hash of a path that goes on with `ids` (int32[n]) after the prefix that `prefix_hash` names. n = 0 changes nothing."""
    if len(ids) == 0:
        return prefix_hash
    digest = hashlib.blake2b(prefix_hash, digest_size=16)
    digest.update(np.ascontiguousarray(ids, dtype="<i4").data)
    return digest.digest()


def call_id(execution: str, parent: str | None, prefix_hash: bytes, new_input: Int32, output: Int32, number: int) -> str:
    """The content-chained id of a call (log-rules, 9), 32 hex digits. Executions of one query may sample the same: the
    execution is part of it."""
    digest = hashlib.blake2b(digest_size=16)
    for part in (execution.encode(), (parent or "").encode(), prefix_hash, str(number).encode(), str(len(new_input)).encode()):
        digest.update(len(part).to_bytes(4, "little") + part)
    for ids in (new_input, output):
        digest.update(np.ascontiguousarray(ids, dtype="<i4").data)
    return digest.hexdigest()


@dataclass(frozen=True, slots=True, eq=False)
class Stretch:
    """What one call adds to the paths. delta: int32[n], of which the first `inputs` tokens are input, the rest output."""

    call: str
    parent: str | None
    prefix_len: int
    prefix_hash: bytes
    delta: Int32
    inputs: int

    @property
    def end(self) -> int:
        """Length of the call's path."""
        return self.prefix_len + len(self.delta)

    @property
    def prompt_len(self) -> int:
        """Length of the call's prompt."""
        return self.prefix_len + self.inputs

    @property
    def output(self) -> Int32:
        """The sampled ids."""
        return self.delta[self.inputs :]


@dataclass(frozen=True, slots=True)
class Cut:
    """A prefix of known paths: the first `length` tokens, whose last is in the delta of `call` (None: the empty prefix)."""

    call: str | None
    length: int


EMPTY = Cut(None, 0)
_NOTHING: Int32 = np.empty(0, dtype=np.int32)


@dataclass(slots=True)
class Paths:
    """All paths of one execution. Memory: four bytes a unique token and one record a call; and, where it goes on from a branch,
    the path of the last such branch, laid out.

    _layouts: by its last call, the layout of each line of calls that began at a root; their deltas stand in it
    _branch:  the layout of the path that was last gone on from and is none of these
    """

    stretches: dict[str, Stretch] = field(default_factory=dict)
    _children: dict[str | None, list[str]] = field(default_factory=dict)
    _layouts: dict[str, Layout] = field(default_factory=dict)
    _branch: Layout | None = None

    def add(self, stretch: Stretch) -> None:
        """Take up a call; its parent stands already. Adding it twice changes nothing."""
        if stretch.call in self.stretches:
            return
        if stretch.parent is not None and stretch.parent not in self.stretches:
            raise KeyError(f"call {stretch.call}: its parent {stretch.parent} is unknown")
        self.stretches[stretch.call] = self._laid_out(stretch)
        self._children.setdefault(stretch.parent, []).append(stretch.call)

    def _laid_out(self, stretch: Stretch) -> Stretch:
        """The call with its delta where the layout of its line holds it, if one does."""
        branch = self._branch
        if branch is not None and (branch.call, branch.length) == (stretch.parent, stretch.prefix_len):
            branch.append(stretch.call, stretch.delta)
        layout = self._layouts.get(stretch.parent or "") if stretch.parent else Layout.of("", _NOTHING)
        if layout is None or layout.length != stretch.prefix_len:
            return stretch
        delta = layout.append(stretch.call, stretch.delta)
        if delta is None:
            return stretch
        self._layouts.pop(stretch.parent or "", None)
        self._layouts[stretch.call] = layout
        return replace(stretch, delta=delta)

    def followed_by(self, cut: Cut, new: Int32) -> Int32:
        """The prefix and what follows it, as one int32 array to be read."""
        if cut.call is None:
            return new
        layout = self._layout(cut.call)
        if cut.length < layout.length:
            return np.concatenate([layout.room[: cut.length], new])
        return layout.lend(new)

    def _layout(self, call: str) -> Layout:
        """The path of a call, laid out."""
        if (layout := self._layouts.get(call)) is not None:
            return layout
        if self._branch is None or self._branch.call != call:
            self._branch = Layout.of(call, self.ids(Cut(call, self.stretches[call].end)))
        return self._branch

    def cut(self, call: str, length: int) -> Cut:
        """The first `length` tokens of a call's path, named by the call that holds the last of them."""
        if length <= 0:
            return EMPTY
        stretch = self.stretches[call]
        if length > stretch.end:
            raise ValueError(f"call {call} has {stretch.end} tokens, not {length}")
        while stretch.prefix_len >= length:
            assert stretch.parent is not None
            stretch = self.stretches[stretch.parent]
        return Cut(stretch.call, length)

    def hash(self, cut: Cut) -> bytes:
        """The chained hash of a prefix."""
        if cut.call is None:
            return ROOT_HASH
        stretch = self.stretches[cut.call]
        return extend_hash(stretch.prefix_hash, stretch.delta[: cut.length - stretch.prefix_len])

    def pieces(self, cut: Cut, start: int = 0) -> list[Int32]:
        """Tokens `start` to `cut.length` as the deltas that hold them, in order; nothing is copied."""
        found: list[Int32] = []
        call, length = cut.call, cut.length
        while call is not None and length > start:
            stretch = self.stretches[call]
            found.append(stretch.delta[max(0, start - stretch.prefix_len) : length - stretch.prefix_len])
            call, length = stretch.parent, stretch.prefix_len
        return found[::-1]

    def ids(self, cut: Cut, start: int = 0) -> Int32:
        """Tokens `start` to `cut.length` as one int32 array."""
        pieces = self.pieces(cut, start)
        return np.concatenate(pieces) if pieces else np.empty(0, dtype=np.int32)

    def extend(self, cut: Cut, ids: Int32) -> tuple[Cut, int]:
        """How far `ids`, standing after `cut`, run along known paths: the longest known prefix, and how many of `ids` it takes.

        The first call that holds a token keeps it: among equally long matches the one recorded first.
        """
        best, reached = cut, [cut]
        while reached:
            at = reached.pop()
            end = self._run(at, ids, cut.length)
            if end > best.length:
                best = Cut(at.call, end)
            reached += reversed([Cut(child, length) for child, length in self._branches(at.call, at.length, end)])
        return best, best.length - cut.length

    def _run(self, at: Cut, ids: Int32, base: int) -> int:
        """Where `ids` leave the own delta of `at.call`, from `at.length` on."""
        if at.call is None:
            return at.length
        stretch = self.stretches[at.call]
        return at.length + common(stretch.delta[at.length - stretch.prefix_len :], ids[at.length - base :])

    def _branches(self, call: str | None, start: int, end: int) -> list[tuple[str, int]]:
        """Children that branch off between two lengths of a call's path. Calls sampled alike may share tokens, so all are tried."""
        children = ((child, self.stretches[child].prefix_len) for child in self._children.get(call, []))
        return [(child, length) for child, length in children if start <= length <= end]


def common(a: Int32, b: Int32) -> int:
    """Length of the common prefix of two int arrays."""
    n = min(len(a), len(b))
    differs = a[:n] != b[:n]
    return int(differs.argmax()) if differs.any() else n

"""KV that may be reused: a radix tree of blocks of 16 tokens, each stored once, the least recently used leaf leaving first.

promises  what `fill` copies was computed for exactly these tokens in this order; `clear` (new weights) forgets everything; a branch
          inside a block and a tail shorter than a block match token by token.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from gyre_engine.experts import NO_ROWS, UNKNOWN, Rows
from gyre_engine.sampling.native.shape import ModelShape

BLOCK = 16

Tokens = tuple[int, ...]


@dataclass(slots=True, eq=False)
class Block:
    """Up to 16 tokens that follow the parent's; only a leaf may be shorter. index: its place in the pool."""

    index: int
    tokens: Tokens
    parent: Block | None
    children: dict[Tokens, Block] = field(default_factory=dict)


class PrefixCache:
    """pool: float32[blocks, layers, 2, kv_heads, 16, head_dim], used only where tokens were stored.

    rows: uint8[blocks, 16, width], the experts of the same tokens, where the model has any
    """

    def __init__(self, shape: ModelShape, capacity_tokens: int) -> None:
        blocks = max(1, capacity_tokens // BLOCK)
        self.pool = torch.empty(blocks, shape.layers, 2, shape.kv_heads, BLOCK, shape.head_dim)
        self.rows = np.empty((blocks, BLOCK, shape.experts.width if shape.experts else 0), dtype=np.uint8)
        self.clear()

    def clear(self) -> None:
        """Forget all: the weights changed."""
        self._root = Block(-1, (), None)
        self._free = list(range(len(self.pool) - 1, -1, -1))
        self._recent: OrderedDict[Block, None] = OrderedDict()
        self.tokens = 0

    def fill(self, ids: Sequence[int], into: Tensor, rows: Rows = NO_ROWS) -> int:
        """Copy the KV of the longest stored prefix of `ids` to a slot's view (Slots.of), and their experts to `rows` where it has room
        for them; how many tokens that is."""
        path, length = self._match(ids)
        self._touch(path)
        if length:
            blocks = self.pool[[block.index for block in path]]
            _, layers, two, heads, _, dim = blocks.shape
            into[:, :, :, :length] = blocks.permute(1, 2, 3, 0, 4, 5).reshape(layers, two, heads, -1, dim)[:, :, :, :length]
            if rows.size:
                rows[:length] = self.rows[[block.index for block in path]].reshape(-1, rows.shape[1])[:length]
        return length

    def store(self, ids: Sequence[int], of: Tensor, room: int, rows: Rows = NO_ROWS) -> None:
        """Keep the KV of `ids`, which a slot's view holds, and their experts (no rows: not known); at most `room` tokens are kept in
        all."""
        path, start = self._whole_blocks(ids)
        self._touch(path)
        parent, added = (path[-1] if path else self._root), list[Block]()
        for at in range(start, len(ids), BLOCK):
            block = self._child(parent, tuple(ids[at : at + BLOCK]))
            if block is None:
                break
            added.append(block)
            parent = block
        self._touch([*path, *added])
        self._copy_in(added, start, of)
        self._note(added, start, rows)
        self.shrink(room)

    def shrink(self, room: int) -> None:
        """Evict until at most `room` tokens are kept."""
        while self.tokens > room:
            self._evict(next(iter(self._recent)))

    def _copy_in(self, blocks: list[Block], start: int, of: Tensor) -> None:
        whole = [block for block in blocks if len(block.tokens) == BLOCK]
        if whole:
            stop = start + len(whole) * BLOCK
            layers, two, heads, _, dim = of.shape
            source = of[:, :, :, start:stop].reshape(layers, two, heads, len(whole), BLOCK, dim)
            self.pool[[block.index for block in whole]] = source.permute(3, 0, 1, 2, 4, 5)
        for tail in blocks[len(whole) :]:
            stop = start + len(whole) * BLOCK
            self.pool[tail.index, :, :, :, : len(tail.tokens)] = of[:, :, :, stop : stop + len(tail.tokens)]

    def _note(self, blocks: list[Block], start: int, rows: Rows) -> None:
        if not self.rows.shape[2]:
            return
        for number, block in enumerate(blocks):
            at = start + number * BLOCK
            self.rows[block.index, : len(block.tokens)] = rows[at : at + len(block.tokens)] if rows.size else UNKNOWN

    def _match(self, ids: Sequence[int]) -> tuple[list[Block], int]:
        """The longest stored prefix: its blocks, of which the last may match in part, and its length."""
        path, length = self._whole_blocks(ids)
        rest = tuple(ids[length : length + BLOCK])
        node = path[-1] if path else self._root
        best = max(node.children.values(), key=lambda child: _shared(child.tokens, rest), default=None)
        shared = _shared(best.tokens, rest) if best is not None else 0
        if best is not None and shared:
            return [*path, best], length + shared
        return path, length

    def _whole_blocks(self, ids: Sequence[int]) -> tuple[list[Block], int]:
        path: list[Block] = []
        node, at = self._root, 0
        while (child := node.children.get(tuple(ids[at : at + BLOCK]))) is not None and len(child.tokens) == BLOCK:
            path.append(child)
            node, at = child, at + BLOCK
        return path, at

    def _child(self, parent: Block, tokens: Tokens) -> Block | None:
        """The child to fill with these tokens: a shorter one grown, or a new one; None where they are kept or no place is free."""
        for known, child in parent.children.items():
            shared = _shared(known, tokens)
            if shared == len(tokens):
                return None  # kept already, with more behind it
            if shared == len(known):
                return self._grow(parent, child, tokens)
        index = self._take(parent)
        if index is None:
            return None
        block = Block(index, tokens, parent)
        parent.children[tokens] = block
        self.tokens += len(tokens)
        return block

    def _grow(self, parent: Block, child: Block, tokens: Tokens) -> Block:
        del parent.children[child.tokens]
        self.tokens += len(tokens) - len(child.tokens)
        child.tokens = tokens
        parent.children[tokens] = child
        self._recent.move_to_end(child)
        return child

    def _take(self, parent: Block) -> int | None:
        """A free place, made by eviction if need be; None where only the path that is being stored is left."""
        if not self._free:
            oldest = next(iter(self._recent), None)
            if oldest is None or oldest is parent or oldest.children:
                return None
            self._evict(oldest)
        return self._free.pop()

    def _touch(self, path: list[Block]) -> None:
        """A parent is always more recent than its children, so the least recent block is a leaf."""
        for block in reversed(path):
            self._recent[block] = None
            self._recent.move_to_end(block)

    def _evict(self, block: Block) -> None:
        del self._recent[block]
        assert block.parent is not None and not block.children
        del block.parent.children[block.tokens]
        self.tokens -= len(block.tokens)
        self._free.append(block.index)


def _shared(one: Tokens, other: Tokens) -> int:
    for at, (a, b) in enumerate(zip(one, other, strict=False)):
        if a != b:
            return at
    return min(len(one), len(other))

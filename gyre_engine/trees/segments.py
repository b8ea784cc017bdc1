"""A tree as segments: maximal pieces without a branch inside, split where children are cut. Counts only, no tokens.

Positions are lengths from the root. Works on the whole tree, or on the part of it that some leaves need.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol


class Node(Protocol):
    """What a node must tell: TreeNode does, and CallFacts."""

    @property
    def node(self) -> str: ...
    @property
    def parent(self) -> str | None: ...
    @property
    def cut(self) -> int: ...
    @property
    def new_input_tokens(self) -> int: ...
    @property
    def output_tokens(self) -> int: ...
    @property
    def trainable(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class Run:
    """Path positions [start, stop) of one node's own delta."""

    node: int
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class TreeSegment:
    """Consecutive runs along one path, with no branch between or inside them.

    parent:     index of the segment that it follows, -1 for a root
    trainable:  policy tokens in it that may be trained on
    sampled:    all policy tokens in it
    """

    runs: tuple[Run, ...]
    parent: int
    trainable: int
    sampled: int

    @property
    def tokens(self) -> int:
        """Its length."""
        return sum(run.stop - run.start for run in self.runs)


@dataclass(frozen=True, slots=True)
class Segments:
    """The segments of a tree, depth-first: a parent before its children, subtrees contiguous.

    segments:  see TreeSegment
    last:      node -> the segment that holds the end of its path (nodes that are not wholly in are missing)
    """

    segments: tuple[TreeSegment, ...]
    last: dict[int, int]

    def path(self, node: int) -> list[int]:
        """Segments from the end of `node` up to its root."""
        found = []
        segment = self.last[node]
        while segment >= 0:
            found.append(segment)
            segment = self.segments[segment].parent
        return found


def places(nodes: Sequence[Node]) -> dict[str, int]:
    """Node id -> its index."""
    return {node.node: index for index, node in enumerate(nodes)}


def end_of(node: Node) -> int:
    """Length of the node's whole path."""
    return node.cut + node.new_input_tokens + node.output_tokens


def leaves_of(nodes: Sequence[Node]) -> list[int]:
    """Nodes with tokens of their own that no child extends from its very end: each is the end of one root-to-leaf
    path.
    """
    place = places(nodes)
    extended = {
        place[n.parent] for n in nodes if n.parent is not None and n.cut == end_of(nodes[place[n.parent]]) > 0 and _own(n)
    }
    return [index for index, node in enumerate(nodes) if index not in extended and _own(node)]


def segments_of(nodes: Sequence[Node], leaves: Iterable[int] | None = None, ends: Collection[int] = ()) -> Segments:
    """The segments of the tree, or of the part that the paths of `leaves` cover. The end of a node in `ends` ends a segment
    even where a single child goes on from it."""
    place = places(nodes)
    extents = _extents(nodes, place, range(len(nodes)) if leaves is None else leaves)
    pieces, children, roots = _pieces(nodes, place, extents)
    return _merge(nodes, pieces, children, roots, ends)


def _own(node: Node) -> int:
    return node.new_input_tokens + node.output_tokens


def _extents(nodes: Sequence[Node], place: dict[str, int], ends: Iterable[int]) -> dict[int, int]:
    """How far each needed node is needed, in path positions."""
    extents: dict[int, int] = {}
    for index in ends:
        stop = end_of(nodes[index])
        current: int | None = index
        while current is not None and extents.get(current, -1) < stop:
            node = nodes[current]
            if _own(node):
                extents[current] = stop
            stop = node.cut
            current = None if node.parent is None else place[node.parent]
    return dict(sorted(extents.items()))


_Pieces = list[Run]
_Children = list[list[int]]


def _pieces(nodes: Sequence[Node], place: dict[str, int], extents: dict[int, int]) -> tuple[_Pieces, _Children, list[int]]:
    """Every needed delta split where needed children are cut; per piece its children, first the one of the same
    node.
    """
    cuts: dict[int, set[int]] = {}
    for index in extents:
        parent = nodes[index].parent
        if parent is not None:
            cuts.setdefault(place[parent], set()).add(nodes[index].cut)
    pieces: _Pieces = []
    ending: dict[tuple[int, int], int] = {}
    for index, stop in extents.items():
        start = nodes[index].cut
        for bound in sorted({cut for cut in cuts.get(index, ()) if cut < stop} | {stop}):
            ending[index, bound] = len(pieces)
            pieces.append(Run(index, start, bound))
            start = bound
    return pieces, *_linked(nodes, place, pieces, ending)


def _linked(
    nodes: Sequence[Node], place: dict[str, int], pieces: _Pieces, ending: dict[tuple[int, int], int]
) -> tuple[_Children, list[int]]:
    children: _Children = [[] for _ in pieces]
    roots: list[int] = []
    for number, piece in enumerate(pieces):
        node = nodes[piece.node]
        if piece.start > node.cut:
            children[ending[piece.node, piece.start]].insert(0, number)
        elif node.parent is None:
            roots.append(number)
        else:
            children[ending[place[node.parent], node.cut]].append(number)
    return children, roots


def _merge(nodes: Sequence[Node], pieces: _Pieces, children: _Children, roots: list[int], ends: Collection[int]) -> Segments:
    """Depth-first, chains of single children joined."""
    segments: list[TreeSegment] = []
    last: dict[int, int] = {}
    stack = [(root, -1) for root in reversed(roots)]
    while stack:
        piece, parent = stack.pop()
        chain = [piece]
        while len(children[chain[-1]]) == 1 and not _ends(nodes, pieces[chain[-1]], ends):
            chain.append(children[chain[-1]][0])
        runs = tuple(pieces[number] for number in chain)
        last.update({run.node: len(segments) for run in runs if run.stop == end_of(nodes[run.node])})
        stack.extend((child, len(segments)) for child in reversed(children[chain[-1]]))
        segments.append(_segment(nodes, runs, parent))
    return Segments(tuple(segments), last)


def _ends(nodes: Sequence[Node], run: Run, ends: Collection[int]) -> bool:
    return run.node in ends and run.stop == end_of(nodes[run.node])


def _segment(nodes: Sequence[Node], runs: tuple[Run, ...], parent: int) -> TreeSegment:
    sampled = [(run, _sampled(nodes[run.node], run)) for run in runs]
    trainable = sum(count for run, count in sampled if nodes[run.node].trainable)
    return TreeSegment(runs, parent, trainable, sum(count for _, count in sampled))


def _sampled(node: Node, run: Run) -> int:
    return max(0, run.stop - max(run.start, node.cut + node.new_input_tokens))

"""What must be known of a statement's text before the engine sees it: its names, its FORMAT, where an INSERT's data begin.

This is a scanner, not a parser: strings, comments and quoted names are told apart, and nothing else.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

HEAD_LIMIT = 1 << 18
"""Bytes in which an INSERT's FORMAT clause must stand."""

_TOKEN = re.compile(
    rb"""(?P<space>\s+|--[^\n]*|\#[ !][^\n]*|/\*.*?(?:\*/|\Z))
       |(?P<string>'(?:[^'\\]|\\.|'')*'|\$(?P<tag>\w*)\$.*?\$(?P=tag)\$)
       |(?P<quoted>`(?:[^`\\]|\\.|``)*`|"(?:[^"\\]|\\.|"")*")
       |(?P<word>[A-Za-z_\x80-\xff][\w\x80-\xff$]*)
       |(?P<other>[0-9][\w.]*|.)""",
    re.VERBOSE | re.DOTALL,
)
_GAP = re.compile(rb"[ \t]*;?[ \t]*(?:\r?\n)?")


@dataclass(frozen=True, slots=True)
class Token:
    """A piece of a statement: its kind (string, quoted, word, other), its text, where it lies, how deep in brackets."""

    kind: str
    text: bytes
    start: int
    end: int
    depth: int

    def says(self, *words: bytes) -> bool:
        """Whether it is one of these keywords, outside all brackets."""
        return self.kind == "word" and self.depth == 0 and self.text.upper() in words


@dataclass(frozen=True, slots=True)
class DataInsert:
    """An INSERT whose rows follow its text: the statement before FORMAT, the format, where the rows begin."""

    head: str
    format: str
    data_at: int


def tokens(text: bytes) -> Iterator[Token]:
    """The tokens of `text`, comments and space left out."""
    depth = 0
    for match in _TOKEN.finditer(text):
        kind = match.lastgroup or ""
        kind = "string" if kind == "tag" else kind
        if kind == "space":
            continue
        piece = match[0]
        depth -= piece in (b")", b"]", b"}")
        yield Token(kind, piece, match.start(), match.end(), depth)
        depth += piece in (b"(", b"[", b"{")


def data_insert(text: bytes) -> DataInsert | None:
    """The INSERT ... FORMAT x that `text` begins with, or None (another statement, or INSERT ... SELECT or VALUES)."""
    seen = tokens(text[:HEAD_LIMIT])
    first = next(seen, None)
    if first is None or not first.says(b"INSERT"):
        return None
    before = first
    for token in seen:
        if token.says(b"SELECT", b"VALUES", b"WITH"):
            return None
        if token.says(b"FORMAT") and not before.says(b"INTO", b"TABLE"):
            name = next(seen, None)
            return None if name is None else _insert_at(text, first, token, name)
        before = token
    return None


def _insert_at(text: bytes, first: Token, clause: Token, name: Token) -> DataInsert:
    gap = _GAP.match(text, name.end)
    head = text[first.start : clause.start].decode("utf-8", "replace").strip()
    return DataInsert(head, name.text.decode("ascii", "replace"), gap.end() if gap else name.end)


def format_clause(text: bytes) -> tuple[str, int] | None:
    """The statement's own output format and where its FORMAT clause begins, or None."""
    found: tuple[str, int] | None = None
    clause: Token | None = None
    for token in tokens(text):
        if clause is not None:
            found = (token.text.decode("ascii", "replace"), clause.start) if token.kind == "word" else None
            clause = None
        elif token.says(b"FORMAT"):
            clause = token
        elif found and not token.says(b"SETTINGS") and token.text != b";" and not _in_settings(text, found, token):
            found = None
    return found


def _in_settings(text: bytes, found: tuple[str, int], token: Token) -> bool:
    between = text[found[1] : token.start].upper()
    return b"SETTINGS" in between


def names(text: bytes) -> set[str]:
    """Every word and quoted name of the statement, in lower case, quotes removed."""
    out = set()
    for token in tokens(text):
        if token.kind == "word":
            out.add(token.text.decode("utf-8", "replace").lower())
        elif token.kind == "quoted":
            out.add(token.text[1:-1].decode("utf-8", "replace").lower())
    return out

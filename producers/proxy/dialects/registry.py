"""The dialects that this proxy speaks: a further one is an entry here. The first answers where nobody's words are known."""

from __future__ import annotations

from collections.abc import Mapping

from producers.proxy.dialects.chat import Chat
from producers.proxy.dialects.messages import Messages
from producers.proxy.dialects.port import Dialect
from producers.proxy.dialects.responses import Responses

DIALECTS: tuple[Dialect, ...] = (Chat(), Messages(), Responses())


def dialect_of(path: str, headers: Mapping[str, str]) -> Dialect:
    """The dialect that a request's client understands: by its path, or on paths that are nobody's by its headers (lower case)."""
    for dialect in DIALECTS:
        if path.startswith(dialect.path):
            return dialect
    return next((dialect for dialect in DIALECTS if dialect.speaks(headers)), DIALECTS[0])

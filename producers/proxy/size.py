"""How large a request is, before anybody spends its time on one that no context can hold.

promises  at most a few times the context's limit is encoded of a request that is far over it, however long its texts are
"""

from __future__ import annotations

from collections.abc import Iterator

import orjson

from producers.proxy.exchange import Ask
from producers.proxy.tokens import ChatTokenizer

BYTES_A_TOKEN = 16
"""Bodies with fewer bytes for each token of the limit are rendered without a question: texts have about 4."""
PIECE = 1 << 16


def overflow(ask: Ask, tokenizer: ChatTokenizer, limit: int) -> int | None:
    """About how many tokens a request has that is far over `limit`, told by its beginning; None where it may fit."""
    if ask.history.nbytes <= BYTES_A_TOKEN * limit:
        return None
    read = tokens = 0
    for piece in _pieces(ask):
        read += len(piece)
        tokens += len(tokenizer.encode(piece))
        if tokens > 2 * limit:
            return tokens * _chars(ask) // read
    return None


def _pieces(ask: Ask) -> Iterator[str]:
    """The texts of a request in their order, the tools first."""
    for text in _texts(ask):
        for at in range(0, len(text), PIECE):
            yield text[at : at + PIECE]


def _texts(ask: Ask) -> Iterator[str]:
    if ask.tools:
        yield orjson.dumps(ask.tools).decode()
    for message in ask.messages:
        yield message.text


def _chars(ask: Ask) -> int:
    return sum(map(len, _texts(ask)))

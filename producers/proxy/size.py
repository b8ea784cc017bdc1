"""How large a request is, told before anybody spends much time on one that no context can hold.

What is measured is what the format encodes, whatever field it stands in: a text, reasoning that the format keeps, a call's
arguments, a tool's schema. What the format drops, or knows already as ids, costs nothing and counts for nothing.

promises  at most a few times the context's limit is encoded of a request that is far over it, however long its texts are
"""

from __future__ import annotations

from collections.abc import Iterator

import orjson

from gyre_engine.trees.conversation import Author
from producers.proxy.exchange import Ask, too_long
from producers.proxy.execution import Execution
from producers.proxy.prompt import Prompt, prompt_for
from producers.proxy.rendering import Rendering
from producers.proxy.tokens import EncodedTooMuch

BYTES_A_TOKEN = 16
"""Bodies with fewer bytes for each token of the limit are rendered without a question: texts have about 4."""


def prompt_within(execution: Execution, ask: Ask, rendering: Rendering, limit: int) -> Prompt:
    """The prompt of a request of any size. Raises ProxyError, with about its tokens, where it is far over `limit`."""
    try:
        return _prompt_within(execution, ask, rendering, limit)
    except EncodedTooMuch as found:
        raise too_long(_about(ask, found), limit) from None


def prompt_length(execution: Execution, ask: Ask, rendering: Rendering, limit: int) -> int:
    """How many tokens that prompt has, or about how many where it is far over `limit`."""
    try:
        return len(_prompt_within(execution, ask, rendering, limit).ids)
    except EncodedTooMuch as found:
        return _about(ask, found)


def _prompt_within(execution: Execution, ask: Ask, rendering: Rendering, limit: int) -> Prompt:
    if ask.history.nbytes <= BYTES_A_TOKEN * limit:
        return prompt_for(execution, ask, rendering)
    if rendering.encodes_itself:
        with rendering.tokenizer.at_most(2 * limit):
            for text in _texts(ask, _turn(ask)):
                rendering.tokenizer.encode(text)
    with rendering.tokenizer.at_most(2 * limit):
        return prompt_for(execution, ask, rendering)


def _about(ask: Ask, found: EncodedTooMuch) -> int:
    """As if what was not encoded were like what was."""
    return max(found.tokens, found.tokens * sum(map(len, _texts(ask))) // found.chars)


def _turn(ask: Ask) -> int:
    """Where the user spoke last: formats may drop the reasoning before it."""
    return max((at for at, message in enumerate(ask.messages) if message.author is Author.USER), default=0)


def _texts(ask: Ask, reasoning_from: int = 0) -> Iterator[str]:
    if ask.tools:
        yield orjson.dumps(ask.tools).decode()
    for at, message in enumerate(ask.messages):
        yield message.text
        if at >= reasoning_from:
            yield message.reasoning
        for call in message.calls:
            yield call.name
            yield call.arguments

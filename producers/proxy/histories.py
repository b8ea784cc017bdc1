"""Histories as they came and as they were understood: of a request that goes on from the last one only what is new is read.

promises  what is kept is bounded in bytes of bodies; reading on gives what reading the whole request would have given
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import orjson

from gyre_engine.trees.conversation import Author, Conversation, Message, begin, steady


@dataclass(frozen=True, slots=True)
class Head:
    """What stands before a request's items.

    raw:      as it came, without what a client changes at every call: what is equal is not read again
    tools:    the offered tools, in OpenAI's function form
    messages: what it says itself (a system text beside the items)
    """

    raw: Any
    tools: list[dict[str, Any]]
    messages: tuple[Message, ...] = ()


Reader = Callable[[Sequence[Any], int], Iterable[tuple[Message, int]]]
"""Items from a position on -> the messages in them, each with the position after its last item. An assistant message may go on
over several items; an item may hold several messages."""


@dataclass(frozen=True, slots=True, eq=False)
class History:
    """A request's items and what they say.

    raw:    the items as they came
    ends:   the position in `raw` after each message; 0 for those of the head
    chains: hash chain after each message, with the tools
    nbytes: size of the body they came in
    """

    head: Head
    raw: Sequence[Any]
    messages: Sequence[Message]
    ends: Sequence[int]
    chains: Sequence[bytes]
    nbytes: int

    def shared(self, raw: Sequence[Any]) -> int:
        """How many of these messages a request with the same head begins with, as far as that can be told without reading on."""
        size = min(len(raw), len(self.raw))
        items = next((at for at in range(size) if raw[at] != self.raw[at]), size)
        count = len(self.messages)
        while count and not self._parts(count, items):
            count -= 1
        return count

    def _parts(self, count: int, items: int) -> bool:
        """Whether after `count` messages, within the first `items` items, nothing of a message lies on both sides."""
        if self.ends[count - 1] > items or self.messages[count - 1].author is Author.ASSISTANT:
            return False
        return count == len(self.messages) or self.ends[count] > self.ends[count - 1]


def read_history(
    raw_head: Any,
    read_head: Callable[[], Head],
    raw: Sequence[Any],
    read: Reader,
    last: History | None,
    sampled: Conversation | None,
    nbytes: int,
) -> History:
    """The history of a request; `last` is what its execution said before, `sampled` what it was answered."""
    links = (sampled or Conversation()).links
    if last is not None and last.head.raw == raw_head and (known := last.shared(raw)):
        head, start = last.head, last.ends[known - 1]
        messages, ends, chains = list(last.messages[:known]), list(last.ends[:known]), list(last.chains[:known])
        chain = chains[-1]
        raw = [*last.raw[:start], *raw[start:]]  # one copy in memory of what both say
    else:
        head, start = read_head(), 0
        messages, ends = [_steadied(message) for message in head.messages], [0] * len(head.messages)
        chain = begin(orjson.dumps(head.tools, option=orjson.OPT_SORT_KEYS))
        chains = links(chain, messages)
        chain = chains[-1] if chains else chain
    new = [(_steadied(message), end) for message, end in read(raw, start)]
    messages += [message for message, _ in new]
    ends += [end for _, end in new]
    chains += links(chain, [message for message, _ in new])
    return History(head, raw, messages, ends, chains, nbytes)


def _steadied(message: Message) -> Message:
    """A system's message without the line that some harnesses change at every call; others may quote it."""
    if message.author is not Author.SYSTEM or (text := steady(message.text)) == message.text:
        return message
    return replace(message, text=text)


def one_by_one(parse: Callable[[Any, int], Message]) -> Reader:
    """The reader of a dialect in which each item is a message."""

    def read(raw: Sequence[Any], start: int) -> Iterator[tuple[Message, int]]:
        for index in range(start, len(raw)):
            yield parse(raw[index], index), index + 1

    return read


class Histories:
    """The last history of each execution, so that a long one is neither parsed nor hashed again. Bounded in bytes of bodies."""

    def __init__(self, budget: int = 256 << 20) -> None:
        self._budget = budget
        self._used = 0
        self._kept: OrderedDict[str, History] = OrderedDict()

    def last(self, execution: str) -> History | None:
        """What the execution's last long request said, if it is still kept."""
        return self._kept.get(execution)

    def keep(self, execution: str, history: History) -> None:
        """Keep a history. A side call, much shorter than what is kept, does not displace it."""
        before = self._kept.get(execution)
        if before is not None and 4 * history.nbytes < before.nbytes:
            return
        self.forget(execution)
        self._kept[execution] = history
        self._used += history.nbytes
        while self._used > self._budget:
            self.forget(next(iter(self._kept)))

    def forget(self, execution: str) -> None:
        """The execution is over, or others need the room."""
        gone = self._kept.pop(execution, None)
        self._used -= gone.nbytes if gone else 0

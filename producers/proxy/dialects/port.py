"""What a dialect is: the words in which one kind of client asks and is answered.

A dialect is one class with one entry in `registry`: a file where it is short (`chat`), a folder where it is not (`messages`,
`responses`). The web application walks the registry and knows none of them by name.

In the middle all are the same: messages with texts, reasoning and tool calls (gyre_engine.trees.conversation), an Ask in, an
Answer out. A dialect is stateless; what it must remember of a request to word the answer stands in `Ask.memo`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from gyre_engine.trees.conversation import Conversation
from producers.proxy.exchange import Answer, Ask, Piece, ProxyError
from producers.proxy.histories import History


@dataclass(frozen=True, slots=True)
class Whole:
    """A whole HTTP answer in a dialect's own shape and status, with the hints that its clients obey."""

    status: int
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Counts:
    """A route to which requests of the dialect are posted that want their prompt's tokens counted. body: words the number."""

    path: str
    body: Callable[[int], bytes]


@dataclass(frozen=True, slots=True)
class Refuses:
    """A route that is not served here, whose clients go on another way once they are told so."""

    path: str
    method: str
    problem: Callable[[], ProxyError]


class Stream(Protocol):
    """One streamed answer, event by event. Each method gives the bytes to send next."""

    def opening(self) -> bytes:
        """Before anything else."""

    def delta(self, piece: Piece) -> bytes:
        """Text or reasoning that came since."""

    def keep_alive(self) -> bytes:
        """What the dialect's clients take for life while no token comes."""

    def closing(self, answer: Answer) -> bytes:
        """All that is held until the record stands: finished items, tool calls, the finish reason, usage, the terminal event."""

    def broken(self, problem: ProxyError) -> bytes:
        """An error after the stream has begun, and its end."""


class Dialect(Protocol):
    """A dialect of the model endpoint."""

    name: str
    """As it stands in the records."""
    path: str
    """Where its requests are posted."""
    beside: Sequence[Counts | Refuses]
    """What its clients ask for besides answers."""

    def speaks(self, headers: Mapping[str, str]) -> bool:
        """Whether a request to a path that is nobody's comes from one of its clients. headers: names in lower case."""

    def parse(self, body: bytes, last: History | None = None, sampled: Conversation | None = None) -> Ask:
        """The request in `body`; `last` is what its execution said before, `sampled` what it was answered.

        Raises ProxyError (4xx) naming the field.
        """

    def answer(self, found: Answer, ask: Ask) -> bytes:
        """The body of a whole answer."""

    def stream(self, ask: Ask, call: str, created: int) -> Stream:
        """A streamed answer. call: its id; created: seconds since 1970."""

    def error(self, problem: ProxyError) -> Whole:
        """A refusal before anything was answered."""

    def models(self, names: Sequence[str]) -> bytes:
        """The list of the models that can be asked for."""

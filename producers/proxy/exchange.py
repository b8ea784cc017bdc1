"""The one form in which every dialect's requests and answers pass through the proxy, and its errors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from gyre_engine.events.calls import Finish
from gyre_engine.trees.conversation import Author, Message, ToolCall
from producers.proxy.histories import History


@dataclass(frozen=True, slots=True)
class Ask:
    """A parsed request.

    max_tokens:    what the client allows, None where it says nothing
    notes:         what was ignored or mended
    memo:          what its dialect needs to word the answer
    prompt_tokens: of a request that is being answered
    """

    dialect: str
    model: str
    history: History
    max_tokens: int | None
    stream: bool
    usage_in_stream: bool = False
    notes: tuple[str, ...] = ()
    memo: Any = None
    prompt_tokens: int = 0

    @property
    def messages(self) -> Sequence[Message]:
        """The messages as understood."""
        return self.history.messages

    def said_by(self, author: Author) -> str:
        """The first system text; of others the last message."""
        messages = self.messages if author is Author.SYSTEM else reversed(self.messages)
        return next((message.text for message in messages if message.author is author), "")

    @property
    def chains(self) -> Sequence[bytes]:
        """The hash chain after each message."""
        return self.history.chains

    @property
    def tools(self) -> list[dict[str, Any]]:
        """The tools, in OpenAI's function form."""
        return self.history.head.tools

    @property
    def digest(self) -> bytes:
        """Names what is asked: two requests with the same digest are the same request, streamed or not."""
        return self.chains[-1] + f"{self.max_tokens} {self.model}".encode("utf-8", "replace")


class Channel(StrEnum):
    """What a streamed piece of text belongs to."""

    TEXT = "text"
    REASONING = "reasoning"


@dataclass(frozen=True, slots=True)
class Piece:
    """Text that was sampled since the piece before."""

    channel: Channel
    text: str


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of a call; `output` counts the stop token and the `reasoning`."""

    prompt: int
    output: int
    cached: int
    reasoning: int = 0


@dataclass(frozen=True, slots=True)
class Answer:
    """A recorded answer."""

    call: str
    created: int
    text: str
    reasoning: str
    calls: tuple[ToolCall, ...]
    finish: Finish
    usage: Usage


class ProxyError(Exception):
    """A request that is not answered.

    retry_after: seconds after which asking again may help
    tokens:      of a history that is too long: how many it has, and how many there may be
    """

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        *,
        kind: str = "invalid_request_error",
        param: str | None = None,
        retry_after: int | None = None,
        tokens: tuple[int, int] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.kind = kind
        self.param = param
        self.retry_after = retry_after
        self.tokens = tokens


def wrong_key() -> ProxyError:
    """No key, or one that this stack did not mint."""
    text = "the API key is not one of this stack's execution keys: use the key that the runner gave to the execution"
    return ProxyError(401, "invalid_api_key", text, kind="authentication_error")


def execution_over(execution: str) -> ProxyError:
    """The execution takes no more calls."""
    text = f"execution {execution} is over: its key takes no more calls"
    return ProxyError(403, "execution_over", text, kind="permission_error")


def unknown_model(model: str, known: list[str]) -> ProxyError:
    """The name maps to nothing."""
    text = f"the model {model!r} does not exist here; known: {', '.join(known)} (add others as [[models]])"
    return ProxyError(404, "model_not_found", text, param="model")


def malformed(message: str, param: str | None = None) -> ProxyError:
    """The body is not a request of its dialect."""
    return ProxyError(400, "invalid_request", message, param=param)


def too_long(length: int, limit: int) -> ProxyError:
    """The history leaves no room for an answer."""
    text = (
        f"This model's maximum context length is {limit} tokens. However, your messages resulted in {length} tokens. "
        "Please reduce the length of the messages."
    )
    return ProxyError(400, "context_length_exceeded", text, param="messages", tokens=(length, limit))


def unavailable(code: str, message: str, retry_after: int = 5) -> ProxyError:
    """Nothing is wrong with the request: later it will be answered."""
    return ProxyError(503, code, message, kind="service_unavailable", retry_after=retry_after)

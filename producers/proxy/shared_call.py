"""What clients share that wait for one answer: the pieces so far, the outcome, and who still listens.

promises  a call ends with an outcome, whatever happens; one that nobody listens to any more is cancelled
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field

from gyre_engine.events import now_us
from producers.proxy.exchange import Answer, Ask, Piece, ProxyError
from producers.proxy.execution import Execution

log = logging.getLogger(__name__)


def nothing() -> None:
    """To do where nobody keeps a call."""


@dataclass(slots=True)
class SharedCall(ABC):
    """A call that runs or whose answer was not taken yet. Clients with the same body share it.

    heard:     the pieces of text so far
    outcome:   the answer, or why there is none
    excuse:    why clients should ask again later, while the answer is there and its record is not
    recorded:  nothing is to be put on the log any more
    shown:     a client was handed text of it, which cannot be taken back
    listeners: clients that wait for it now
    forget:    needs not be found again: a client has had it whole, or there will be no answer
    """

    execution: Execution
    ask: Ask
    requested_at: int = field(default_factory=now_us, kw_only=True)
    heard: list[Piece] = field(default_factory=list, kw_only=True)
    outcome: Answer | ProxyError | None = field(default=None, kw_only=True)
    excuse: ProxyError | None = field(default=None, kw_only=True)
    recorded: bool = field(default=False, kw_only=True)
    shown: bool = field(default=False, kw_only=True)
    listeners: int = field(default=0, kw_only=True)
    cancel: asyncio.Event = field(default_factory=asyncio.Event, kw_only=True)
    task: asyncio.Task[None] | None = field(default=None, kw_only=True)
    forget: Callable[[], None] = field(default=nothing, kw_only=True)
    _changed: asyncio.Event = field(default_factory=asyncio.Event, kw_only=True)

    @property
    @abstractmethod
    def id(self) -> str:
        """Names the call in a stream, before there is an answer."""

    @property
    @abstractmethod
    def prompt_tokens(self) -> int:
        """How long the prompt is; 0 where that is not known before the answer."""

    @property
    @abstractmethod
    def held_us(self) -> int:
        """Microseconds that the agent is held up by this call so far, and that no record counts yet."""

    @abstractmethod
    async def _answered(self) -> Answer | ProxyError:
        """The outcome. May raise ProxyError instead."""

    async def news(self, seen: int, timeout: float | None) -> bool:
        """Wait until there are more than `seen` pieces or an outcome; False where that took longer than `timeout` seconds."""
        while len(self.heard) <= seen and self.outcome is None and self.excuse is None:
            try:
                await asyncio.wait_for(self._changed.wait(), timeout)
            except TimeoutError:
                return False
        return True

    def leave(self) -> None:
        """A client has gone or is done; when the last one leaves a running call, the call is cancelled."""
        self.listeners -= 1
        if not self.listeners and self.outcome is None:
            self.cancel.set()

    def failed(self) -> None:
        """A client was told of an error that is not its own."""
        self.execution.errors += 1

    async def run(self) -> None:
        """Ends with an outcome, whatever happens."""
        try:
            self._settle(await self._answered())
        except ProxyError as problem:
            self._settle(problem)
        except Exception as error:
            log.exception("call of %s failed", self.execution.id)
            text = f"the proxy failed on this call: {type(error).__name__}"
            self._settle(ProxyError(500, "internal_error", text, kind="server_error"))

    def _settle(self, outcome: Answer | ProxyError) -> None:
        self.outcome = outcome
        if isinstance(outcome, ProxyError):
            self.forget()
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

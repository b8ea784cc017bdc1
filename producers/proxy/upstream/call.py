"""One call to an upstream: asked, told as an event, answered in the client's dialect.

writes    tool-events (upstream-answered)
promises  nothing of it stands in model-calls; tool-call ids are its own, so they stay unique in the execution
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from uuid import uuid4

from gyre_engine.events import derived_id
from gyre_engine.events.executions import UpstreamAnswered
from producers.proxy.exchange import Answer, Channel, Piece, ProxyError, Usage, unavailable
from producers.proxy.outbox import Outbox
from producers.proxy.shared_call import SharedCall
from producers.proxy.upstream.client import Delivered, UpstreamClient
from producers.proxy.upstream.wire import Said, request

_NO_USAGE = Usage(0, 0, 0)


@dataclass(slots=True)
class UpstreamCall(SharedCall):
    """A call to an upstream. Its answer comes at once; until then its clients' streams are kept alive."""

    upstream: UpstreamClient
    outbox: Outbox
    name: str = field(default_factory=lambda: uuid4().hex)

    @property
    def id(self) -> str:
        """Names the answer and its tool calls."""
        return self.name

    @property
    def prompt_tokens(self) -> int:
        """Only the upstream can tell, and only with its answer."""
        return 0

    @property
    def held_us(self) -> int:
        """The proxy does not hold it up."""
        return 0

    async def _answered(self) -> Answer | ProxyError:
        began, status, usage = time.monotonic_ns(), 0, _NO_USAGE
        try:
            delivered = await self._delivered()
            status = delivered.status
            said = self.upstream.said(delivered)
            usage = said.usage
        finally:
            self.recorded = True
            self._tell(status, usage, (time.monotonic_ns() - began) // 1000)
        return self._answer(said)

    async def _delivered(self) -> Delivered:
        """What the upstream sends. Raises ProxyError, also where the call was cancelled before it came."""
        body = request(self.ask, self.upstream.model(self.ask.model))
        asking, watch = asyncio.ensure_future(self.upstream.ask(body)), asyncio.ensure_future(self.cancel.wait())
        try:
            await asyncio.wait({asking, watch}, return_when=asyncio.FIRST_COMPLETED)
            if asking.done():
                return asking.result()
            raise unavailable("call_cancelled", "the call was cancelled: its execution ends, or the proxy restarts", 1)
        finally:
            for task in (asking, watch):
                task.cancel()
            await asyncio.wait({asking, watch})

    def _answer(self, said: Said) -> Answer:
        parsed = said.parsed
        texts = ((Channel.REASONING, parsed.reasoning), (Channel.TEXT, parsed.text))
        self.heard += [Piece(channel, text) for channel, text in texts if text]
        calls, at = parsed.tool_calls(self.name), self.requested_at // 1_000_000
        return Answer(self.name, at, parsed.text, parsed.reasoning, calls, said.finish, said.usage)

    def _tell(self, status: int, usage: Usage, took_us: int) -> None:
        event = UpstreamAnswered(
            execution=self.execution.id,
            call=self.name,
            model=self.ask.model,
            host=self.upstream.host,
            input_tokens=usage.prompt,
            output_tokens=usage.output,
            status=status,
            took_us=took_us,
        )
        self.outbox.tell(event, derived_id((self.execution.id, self.name), "upstream-answered", 1))

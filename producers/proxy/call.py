"""One call from its prompt to its record: sampled, recorded, then (and only then) answered whole.

writes    model-calls, tool-events
promises  the last chunk and every tool call are held until the record is acknowledged; one record a call, whatever
          its clients do; what a cancelled call has sampled is recorded
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import numpy as np

from gyre_engine.events import Event, derived_id, now_us
from gyre_engine.events.calls import Finish, ModelCall, Role
from gyre_engine.events.codec import UInt8
from gyre_engine.events.executions import ToolCalled
from gyre_engine.experts import UNKNOWN, BadRouting, recorded_from, recorded_tokens
from gyre_engine.sampling.port import Chunk, FinishReason
from gyre_engine.sampling.rids import new_rid
from gyre_engine.trees.conversation import Author, Message, link
from gyre_engine.trees.path import call_id
from producers.proxy.exchange import Answer, Ask, ProxyError, Usage, too_long, unavailable
from producers.proxy.execution import Execution
from producers.proxy.generation import Job, Sampled, sample
from producers.proxy.outbox import Outbox
from producers.proxy.prompt import Prompt
from producers.proxy.rendering import Parsed, Rendering
from producers.proxy.role_rules import told_role
from producers.proxy.router import Router
from producers.proxy.settings import ProxySettings
from producers.proxy.shared_call import SharedCall
from producers.proxy.size import prompt_within
from producers.proxy.streamed import TextStream

SHOWN = 16_384
"""Characters of a tool's arguments or result that an event shows."""
ROUTED_MOST = 8 << 20
"""Bytes of routed experts in one record: it must fit the log beside a long prompt's tokens."""


@dataclass(frozen=True, slots=True)
class Desk:
    """What every call needs of the proxy. untrainable: why nothing that is sampled here may be trained on, or None."""

    router: Router
    outbox: Outbox
    rendering: Rendering
    untrainable: str | None = None


@dataclass(slots=True)
class Call(SharedCall):
    """A call to the policy, or to a frozen engine.

    role:  told by a rule of the config
    retry: begin anew, rather than go on, where an engine left it unfinished and nobody has seen text of it yet
    """

    desk: Desk
    prompt: Prompt
    job: Job
    role: Role | None = None
    retry: bool = False
    sampled: Sampled = field(default_factory=Sampled)
    _text: TextStream | None = None

    @property
    def id(self) -> str:
        """The request's name at the engines."""
        return self.job.rid

    @property
    def prompt_tokens(self) -> int:
        """Of the whole prompt."""
        return len(self.prompt.ids)

    @property
    def held_us(self) -> int:
        """Until the record counts it."""
        return 0 if self.recorded else self.sampled.held_so_far

    async def _answered(self) -> Answer | ProxyError:
        try:
            finish = _FINISH[await self._sample()]
        except ProxyError as problem:
            if self.sampled.ids or self.sampled.broken or self.sampled.discarded:
                await self._record(Finish.ERROR, _NOTHING)
            return problem
        parsed = self._parsed() if finish is not Finish.CANCELLED else _NOTHING
        if finish is Finish.STOP and parsed.calls:
            finish = Finish.TOOL_CALLS
        record = await self._record(finish, parsed)
        if finish is Finish.CANCELLED:
            return unavailable("call_cancelled", "the call was cancelled: its execution ends, or the proxy restarts", 1)
        self.heard += self._stream.rest(parsed)
        usage = Usage(len(self.prompt.ids), len(record.output_ids), record.cached_tokens, self._thought(parsed))
        calls = parsed.tool_calls(record.call)
        return Answer(record.call, self.requested_at // 1_000_000, parsed.text, parsed.reasoning, calls, finish, usage)

    async def _sample(self) -> FinishReason:
        return await sample(self.desk.router, self.job, self.sampled, self.cancel, self._hear, self._anew)

    def _anew(self) -> bool:
        """Whether the call begins anew: what a client has had of it cannot be taken back."""
        if not self.retry or self.shown:
            return False
        self.heard.clear()
        self._text = None
        return True

    def _hear(self, chunk: Chunk) -> None:
        """Text goes out as it comes, save that of the last chunk."""
        if chunk.finish_reason in (FinishReason.STOP, FinishReason.LENGTH):
            return
        pieces = self._stream.feed(chunk.output_ids)
        if pieces:
            self.heard += pieces
            self._wake()

    @property
    def _stream(self) -> TextStream:
        if self._text is None:
            self._text = TextStream(self.desk.rendering, self._tail())
        return self._text

    def _tail(self) -> list[int]:
        size = self.desk.rendering.tail
        found: list[int] = self.prompt.ids[-size if size else 0 :].tolist()
        return found

    def _parsed(self) -> Parsed:
        return self.desk.rendering.parse(self._tail(), self.sampled.ids, self.ask.tools)

    def _thought(self, parsed: Parsed) -> int:
        """How many of the sampled tokens are reasoning, its marker included."""
        close, ids = self.desk.rendering.think_close, self.sampled.ids
        if not parsed.reasoning:
            return 0
        return ids.index(close) + 1 if close in ids else len(ids)

    async def _record(self, finish: Finish, parsed: Parsed) -> ModelCall:
        """Put the record on the log and wait until it stands there, however long; its clients wait no longer than they may."""
        records: list[ModelCall] = []

        def make() -> tuple[Event, str]:
            records.append(_record_of(self, finish, parsed))
            return records[-1], records[-1].call

        def stands() -> None:
            self.execution.learn(records[-1])
            self.execution.answered(records[-1], [asked.id for asked in parsed.tool_calls(records[-1].call)])
            self.recorded, self.excuse = True, None
            self._tell_tools(records[-1], parsed)

        put = asyncio.ensure_future(self.desk.outbox.put(self.execution.id, make, stands))
        while not put.done():
            await asyncio.wait({put}, timeout=self.job.wait_limit_s)
            if not put.done():
                self._excuse()
        put.result()
        return records[-1]

    def _excuse(self) -> None:
        """The log stays away: those who wait are told to ask again (the answer is kept for them)."""
        text = f"the event log has not taken this answer for {self.job.wait_limit_s:.0f} s: ask again, it is kept"
        self.excuse = unavailable("log_unavailable", text)
        self._wake()

    def _tell_tools(self, record: ModelCall, parsed: Parsed) -> None:
        for index, asked in enumerate(parsed.tool_calls(record.call)):
            event = ToolCalled(
                execution=record.execution,
                call=record.call,
                tool_call=asked.id,
                name=asked.name,
                arguments=asked.arguments[:SHOWN],
            )
            self.desk.outbox.tell(event, derived_id((record.call,), "tool-called", 1, index=index))


def new_call(execution: Execution, ask: Ask, desk: Desk, settings: ProxySettings, held_us: int) -> Call:
    """A call that is yet to run: its prompt, its parameters, its role. held_us: how long it has waited for the log.

    Raises ProxyError (400) where no context holds it.
    """
    prompt = prompt_within(execution, ask, desk.rendering, settings.context_limit)
    room = settings.context_limit - len(prompt.ids)
    if room < 1:
        raise too_long(len(prompt.ids), settings.context_limit)
    most = settings.sampling.max_tokens
    params = settings.sampling.params(min(room, most, ask.max_tokens or most), desk.rendering.stop_ids)
    job = Job(
        execution.id, new_rid(execution.id), prompt.ids, params, settings.context_limit, settings.wait_limit_s,
        settings.experts if desk.untrainable is None else None, recorded_from(prompt.at.length),
    )  # fmt: skip
    role = told_role(settings.roles, ask.said_by(Author.SYSTEM), ask.said_by(Author.USER), bool(ask.tools))
    return Call(execution, ask, desk, prompt, job, role, settings.retry, Sampled(held_us=held_us))


_FINISH = {FinishReason.STOP: Finish.STOP, FinishReason.LENGTH: Finish.LENGTH, FinishReason.ABORT: Finish.CANCELLED}
_NOTHING = Parsed("", "", ())


def _record_of(call: Call, finish: Finish, parsed: Parsed) -> ModelCall:
    execution, prompt, sampled, params = call.execution, call.prompt, call.sampled, call.job.params
    output, number = np.asarray(sampled.ids, dtype=np.int32), execution.calls
    routed, left_out = _routed(call)
    name = call_id(execution.id, prompt.at.call, prompt.prefix_hash, prompt.new, output, number)
    return ModelCall(
        execution=execution.id,
        call=name,
        number=number,
        owner_epoch=execution.epoch,
        parent=prompt.at.call,
        prefix_len=prompt.at.length,
        prefix_hash=prompt.prefix_hash,
        new_input_ids=prompt.new,
        output_ids=output,
        logprobs=np.asarray(sampled.logprobs, dtype=np.float32),
        weight_spans=tuple(sampled.spans),
        input_spans=prompt.spans,
        finish=finish,
        continuity=prompt.continuity,
        dialect=call.ask.dialect,
        temperature=params.temperature,
        top_p=params.top_p,
        max_tokens=params.max_tokens,
        tools=len(call.ask.tools),
        messages=len(call.ask.messages),
        shape=prompt.shape,
        role=call.role,
        untrainable=_untrainable(call),
        queued_us=sampled.held_so_far,
        requested_at=call.requested_at,
        first_token_at=sampled.first_token_at,
        finished_at=now_us(),
        cached_tokens=sampled.cached,
        engine_calls=max(1, sampled.engine_calls),
        notes=(*call.ask.notes, *left_out),
        chain=_chain(call, name, finish, parsed),
        discarded_tokens=sampled.discarded,
        routed_experts=routed,
    )


def _routed(call: Call) -> tuple[UInt8, tuple[str, ...]]:
    """What the engines told of the call's tokens, and a note where it is left out; what they did not tell is unknown.

    A record that does not fit makes the call untrainable.
    """
    told, experts, nothing = bytes(call.sampled.routed), call.job.experts, np.empty(0, np.uint8)
    if experts is None or not told:
        return nothing, ()
    if len(told) > ROUTED_MOST:
        return nothing, (f"routed experts: {len(told):,} bytes are more than a record may hold",)
    size = experts.width * recorded_tokens(call.prompt.at.length, len(call.prompt.ids) + len(call.sampled.ids))
    flat = np.frombuffer(told.ljust(size, bytes([UNKNOWN])), dtype=np.uint8)
    try:
        if len(flat) > size:
            raise BadRouting(f"{len(flat)} bytes of routed experts where {size} were asked for")
        experts.routed(flat.reshape(-1, experts.width))
    except BadRouting as error:
        call.sampled.broken = f"routed experts: {error}"
        return nothing, ()
    return flat, ()


def _chain(call: Call, name: str, finish: Finish, parsed: Parsed) -> bytes:
    """Where a history that goes on from this answer begins; nothing goes on from one that no client got."""
    if finish in (Finish.CANCELLED, Finish.ERROR):
        return b""
    return link(call.prompt.chain, Message(Author.ASSISTANT, parsed.text, calls=parsed.tool_calls(name)))


def _untrainable(call: Call) -> str | None:
    """Why nothing of this call may be trained on (learning.md, 2 and 12)."""
    params = call.job.params
    if reason := call.desk.untrainable or call.sampled.broken:
        return reason
    if params.temperature == 0:
        return "greedy: no token was drawn"
    if params.top_p < 1 or params.top_k or params.min_p:
        return "truncated: top_p, top_k or min_p cut the distribution"
    return None

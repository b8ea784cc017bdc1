"""What the tree needs to know of a model call: counts and structure, never token ids.

`of_bytes` takes it straight from a record, an order of magnitude faster than decoding the whole event: msgspec skips the fields
that nobody asks for, and the length of an array is the length of its bytes. Trees, replay and restarts read model-calls through it.
"""

from __future__ import annotations

import msgspec

from gyre_engine.events import CodecError, Event, decode
from gyre_engine.events.calls import Continuity, ExecutionClosed, ModelCall, ProxyOwns, Role


class CallFacts(msgspec.Struct, frozen=True, gc=False):
    """One model call without its tokens. Lengths are in tokens.

    cut:               length of the shared prefix, from the root
    new_input_tokens:  prompt tokens of its own
    output_tokens:     sampled tokens
    trainable:         whether the policy's tokens may be trained on
    min_version:       oldest weight version that sampled one of its tokens; max_version the newest
    role:              told by a rule of the config, else None
    discarded_tokens:  sampled and thrown away before `output_tokens` were
    """

    execution: str
    call: str
    number: int
    owner_epoch: int
    parent: str | None
    cut: int
    new_input_tokens: int
    output_tokens: int
    trainable: bool
    shape: str
    tools: int
    messages: int
    continuity: Continuity
    min_version: int
    max_version: int
    role: Role | None = None
    discarded_tokens: int = 0

    @property
    def node(self) -> str:
        """Its name in the tree (segments.Node)."""
        return self.call

    @property
    def output_start(self) -> int:
        """Where its sampled tokens begin on its path: the length of its prompt."""
        return self.cut + self.new_input_tokens

    @property
    def end(self) -> int:
        """Length of its path."""
        return self.cut + self.new_input_tokens + self.output_tokens


Fact = CallFacts | ProxyOwns | ExecutionClosed


class RecordedFact(msgspec.Struct, frozen=True, gc=False):
    """A fact and the envelope it came in."""

    id: str
    at: int
    fact: Fact


class _Span(msgspec.Struct, gc=False):
    version: int


class _Body(msgspec.Struct, gc=False):
    """The fields of a model call that are asked for, in the order in which they are written: so each is found at once."""

    execution: str
    call: str
    number: int
    owner_epoch: int
    parent: str | None
    prefix_len: int
    new_input_ids: bytes
    output_ids: bytes
    logprobs: bytes
    weight_spans: list[_Span]
    continuity: Continuity
    tools: int
    messages: int
    shape: str
    untrainable: str | None = None
    role: Role | None = None
    discarded_tokens: int = 0


class _Envelope(msgspec.Struct, gc=False):
    type: str
    v: int
    id: str
    at: int
    body: msgspec.Raw


_envelope = msgspec.msgpack.Decoder(_Envelope)
_body = msgspec.msgpack.Decoder(_Body)


def of_bytes(value: bytes | None) -> RecordedFact:
    """The fact in a record of `model-calls`. Raises CodecError (what is wrong) or UnknownEvent (type or version)."""
    if value is None:
        raise CodecError("a null value")
    try:
        envelope = _envelope.decode(value)
        if envelope.type == ModelCall.TYPE and envelope.v == ModelCall.VERSION:
            return RecordedFact(envelope.id, envelope.at, _of_body(_body.decode(envelope.body)))
    except (msgspec.DecodeError, ValueError) as error:
        decode(value)  # where the codec refuses it too, in the codec's words: every reader gives the same reason
        raise CodecError(f"{type(error).__name__}: {error!s:.200}") from error
    record = decode(value)
    return RecordedFact(record.id, record.at, of_event(record.event))


def of_event(event: Event) -> Fact:
    """The fact in an event of `model-calls`. Raises CodecError for any other event."""
    if isinstance(event, ModelCall):
        return of_call(event)
    if isinstance(event, ProxyOwns | ExecutionClosed):
        return event
    raise CodecError(f"{event.TYPE} does not belong on model-calls")


def of_call(call: ModelCall) -> CallFacts:
    """The facts of a decoded call."""
    return _counted(call, len(call.new_input_ids), len(call.output_ids), len(call.logprobs))


def _of_body(body: _Body) -> CallFacts:
    new_input, output, logprobs = len(body.new_input_ids), len(body.output_ids), len(body.logprobs)
    if (new_input | output | logprobs) & 3:
        raise ValueError("an array is not bin of whole 4-byte items")
    return _counted(body, new_input // 4, output // 4, logprobs // 4)


def _counted(call: ModelCall | _Body, new_input: int, output: int, logprobs: int) -> CallFacts:
    """A call and the lengths of its arrays. The fields go by position: this runs once a record."""
    oldest, newest = _versions(call)
    return CallFacts(
        call.execution,
        call.call,
        call.number,
        call.owner_epoch,
        call.parent,
        call.prefix_len,
        new_input,
        output,
        call.untrainable is None and 0 < output == logprobs,
        call.shape,
        call.tools,
        call.messages,
        call.continuity,
        oldest,
        newest,
        call.role,
        call.discarded_tokens,
    )


def _versions(call: ModelCall | _Body) -> tuple[int, int]:
    """The oldest and the newest that sampled; most calls have one."""
    spans = call.weight_spans
    if len(spans) == 1:
        return spans[0].version, spans[0].version
    versions = [span.version for span in spans] or [0]
    return min(versions), max(versions)

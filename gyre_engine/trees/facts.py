"""What the tree needs to know of a model call: counts and structure, never token ids.

`read` takes it straight from a record's bytes, an order of magnitude faster than decoding the whole event: the length
of an array is the length of its bytes. Trees, replay and restarts read model-calls through it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgpack

from gyre_engine.events import CodecError, Event, Recorded, decode
from gyre_engine.events.calls import Continuity, ExecutionClosed, ModelCall, ProxyOwns

_CONTINUITY = {c.value.encode(): c for c in Continuity}
_TYPE = ModelCall.TYPE.encode()


@dataclass(frozen=True, slots=True)
class CallFacts:
    """One model call without its tokens. Lengths are in tokens.

    cut:            length of the shared prefix, from the root
    new_input:      prompt tokens of its own
    output:         sampled tokens
    trainable:      whether the policy's tokens may be trained on
    min_version:    oldest weight version that sampled one of its tokens; max_version the newest
    """

    execution: str
    call: str
    number: int
    owner_epoch: int
    parent: str | None
    cut: int
    new_input: int
    output: int
    trainable: bool
    shape: str
    tools: int
    messages: int
    continuity: Continuity
    min_version: int
    max_version: int

    @property
    def output_start(self) -> int:
        """Where its sampled tokens begin on its path: the length of its prompt."""
        return self.cut + self.new_input

    @property
    def end(self) -> int:
        """Length of its path."""
        return self.cut + self.new_input + self.output


Fact = CallFacts | ProxyOwns | ExecutionClosed


@dataclass(frozen=True, slots=True)
class Read:
    """A fact and the envelope it came in."""

    id: str
    at: int
    fact: Fact


def facts_of(call: ModelCall) -> CallFacts:
    """The facts of a decoded call."""
    versions = [span.version for span in call.weight_spans] or [0]
    return CallFacts(
        call.execution,
        call.call,
        call.number,
        call.owner_epoch,
        call.parent,
        call.prefix_len,
        len(call.new_input_ids),
        len(call.output_ids),
        call.untrainable is None and 0 < len(call.output_ids) == len(call.logprobs),
        call.shape,
        call.tools,
        call.messages,
        call.continuity,
        min(versions),
        max(versions),
    )


def fact_of(event: Event) -> Fact:
    """The fact in an event of `model-calls`. Raises CodecError for any other event."""
    if isinstance(event, ModelCall):
        return facts_of(event)
    if isinstance(event, ProxyOwns | ExecutionClosed):
        return event
    raise CodecError(f"{event.TYPE} does not belong on model-calls")


def read(value: bytes | None) -> Read:
    """The fact in a record of `model-calls`. Raises CodecError (what is wrong) or UnknownEvent (type or version)."""
    if value is None:
        raise CodecError("a null value")
    envelope = _unpacked(value)
    if envelope.get(b"type") != _TYPE or envelope.get(b"v") != ModelCall.VERSION:
        return read_decoded(decode(value))
    try:
        return Read(_text(envelope[b"id"]), envelope[b"at"] + 0, _facts(envelope[b"body"]))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CodecError(f"ModelCall: {type(error).__name__} {error!s:.200}") from error


def _unpacked(value: bytes) -> dict[bytes, Any]:
    """The envelope with all texts left as bytes: decoding them is a third of the work, and few are wanted."""
    try:
        envelope = msgpack.unpackb(value, raw=True, strict_map_key=False)
    except (ValueError, msgpack.exceptions.UnpackException) as error:
        raise CodecError(f"not msgpack: {error!s:.200}") from error
    if not isinstance(envelope, dict):
        raise CodecError(f"expected a map, got {type(envelope).__name__}")
    return envelope


def read_decoded(record: Recorded) -> Read:
    """The fact in a decoded record."""
    return Read(record.id, record.at, fact_of(record.event))


def _facts(body: dict[bytes, Any]) -> CallFacts:
    output = _items(body[b"output_ids"])
    parent = body[b"parent"]
    versions = [span[b"version"] for span in body[b"weight_spans"]] or [0]
    return CallFacts(
        _text(body[b"execution"]),
        _text(body[b"call"]),
        body[b"number"] + 0,
        body[b"owner_epoch"] + 0,
        None if parent is None else _text(parent),
        body[b"prefix_len"] + 0,
        _items(body[b"new_input_ids"]),
        output,
        body.get(b"untrainable") is None and 0 < output == _items(body[b"logprobs"]),
        _text(body[b"shape"]),
        body[b"tools"] + 0,
        body[b"messages"] + 0,
        _CONTINUITY[body[b"continuity"]],
        min(versions),
        max(versions),
    )


def _items(data: Any) -> int:
    """How many 4-byte items `data` holds."""
    if not isinstance(data, bytes) or len(data) % 4:
        raise ValueError("an array is not bin of whole 4-byte items")
    return len(data) // 4


def _text(value: Any) -> str:
    if not isinstance(value, bytes):
        raise TypeError(f"expected text, got {type(value).__name__}")
    return value.decode()
